"""A mapping that grows without being copied is a mapping like any other."""

import pickle
import random

from pyspark_tidb_binlog.schemas.layered import LATE, Layered


def test_it_is_what_a_dict_would_be_and_its_older_selves_stay():
    rng = random.Random(5)
    made, model = Layered({}), {}
    older = []
    for step in range(3 * LATE):
        more = {rng.randrange(5000): step}
        made, model = made.with_more(more), {**model, **more}
        if step % 500 == 0:
            older.append((made, dict(model)))
    assert made == model and len(made) == len(model) and dict(made) == model
    assert all(made.get(key, "no") == model.get(key, "no") and (key in made) == (key in model) for key in range(5001))
    assert all(before == then for before, then in older)
    assert pickle.loads(pickle.dumps(made)) == model


def test_one_more_leaves_what_is_there_alone():
    base = {n: n for n in range(100_000)}
    assert Layered(base).with_more({-1: 0})._base is base
