-- Keeps an operation, and names those of its kind that have to make room.
-- KEYS: 1 operation, 2 looks, 3 operations of its kind, 4 those of the other kind, 5 number of the latest.
-- ARGV: 1 id, 2 value, 3 when it expires, 4 when it is looked at next (empty: never), 5 looks so far, 6 life in ms, 7 the most
--       operations, 8 the most that go at once.
redis.call('HSET', KEYS[1], 'v', ARGV[2], 'x', ARGV[3], 'n', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[6])
redis.call('ZADD', KEYS[3], redis.call('INCR', KEYS[5]), ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[1])
if ARGV[4] == '' then
  redis.call('ZREM', KEYS[2], ARGV[1])
else
  redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1])
  keep(KEYS[2], ARGV[6])
end
keep(KEYS[3], ARGV[6])
-- as long as what it numbers
keep(KEYS[5], redis.call('PTTL', KEYS[3]))
local excess = math.min(redis.call('ZCARD', KEYS[3]) - tonumber(ARGV[7]), tonumber(ARGV[8]))
if excess <= 0 then return {} end
return redis.call('ZRANGE', KEYS[3], 0, excess - 1)
