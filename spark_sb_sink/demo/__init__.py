"""`spark-sb-sink demo`: a region dies on the embedded broker, and nothing gets lost. No part of the library."""
