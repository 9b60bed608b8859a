//! Files: mapping, allocation, atomic replacement, lock files, and a disk that fails on purpose.
