-- Takes out of a stream what stands for no job that waits there.
-- KEYS: job, stream, later. ARGV: entry.
if redis.call('HGET', KEYS[1], 'e') == ARGV[1] then return 0 end
dequeue(KEYS[2], KEYS[3], ARGV[1])
return 1
