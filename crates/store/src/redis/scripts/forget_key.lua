-- Forgets one key, and fences attempts under way. The removal comes first: after it a full server lets the script finish.
-- KEYS: entry, strike, index, expiry, strikes, epoch, keyed, floor, wide. ARGV: fingerprint, channel, message, the most keyed forgets.
local x = redis.pcall('HGET', KEYS[1], 'x')
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[1])
redis.call('ZREM', KEYS[5], ARGV[1])
redis.call('ZADD', KEYS[7], next_forget(KEYS[6], KEYS[8], KEYS[9], KEYS[7]), ARGV[1])
if redis.call('ZCARD', KEYS[7]) > tonumber(ARGV[4]) then
  local oldest = redis.call('ZPOPMIN', KEYS[7])
  local floor = redis.call('GET', KEYS[8])
  if not floor or tonumber(oldest[2]) > tonumber(floor) then redis.call('SET', KEYS[8], oldest[2]) end
end
redis.call('PUBLISH', ARGV[2], ARGV[3])
if type(x) == 'table' then return '' end
return x or ''
