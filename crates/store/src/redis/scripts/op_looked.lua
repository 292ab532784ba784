-- Counts a look at an operation and returns it; one that is not there is not looked at any more.
-- KEYS: operation, looks, operations. ARGV: id.
local value = redis.call('HGET', KEYS[1], 'v')
local at = redis.call('ZSCORE', KEYS[2], ARGV[1])
if value and at then return {value, tostring(redis.call('HINCRBY', KEYS[1], 'n', 1)), at} end
if not value then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('ZREM', KEYS[3], ARGV[1])
end
return {}
