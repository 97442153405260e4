"""A loopback address of this test process alone, for servers whose tests count their connections.

On 127.0.0.1 every free port is soon another server's, and a client that still dials the former one, such as a channel to a Pump that a test of
another process killed, connects to the new one and stays.
"""

import os

OWN_HOST = f"127.{os.getpid() >> 16 & 0x3F | 0x80}.{os.getpid() >> 8 & 0xFF}.{os.getpid() & 0xFF}"
