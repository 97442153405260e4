"""The session of the jobs: its JVM, its Python workers, its jars."""
