-- Notes a forget that names no single key: attempts under way are fenced from here on. What it selects is removed afterwards.
-- KEYS: epoch, wide, floor, keyed. ARGV: what it selects, channel, message, the most that are noted.
-- a write that takes no memory comes first: after it a full server lets a script finish, so that people can make room
redis.call('ZREM', KEYS[2], '')
local epoch = next_forget(KEYS[1], KEYS[3], KEYS[2], KEYS[4])
redis.call('ZADD', KEYS[2], epoch, string.format('%020.0f', epoch) .. ARGV[1])
if redis.call('ZCARD', KEYS[2]) > tonumber(ARGV[4]) then
  local oldest = redis.call('ZPOPMIN', KEYS[2])
  local floor = redis.call('GET', KEYS[3])
  if not floor or tonumber(oldest[2]) > tonumber(floor) then redis.call('SET', KEYS[3], oldest[2]) end
end
redis.call('PUBLISH', ARGV[2], ARGV[3])
return epoch
