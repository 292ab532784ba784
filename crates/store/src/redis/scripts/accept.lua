-- The upstream accepted the document: its entry and its strikes go, unless they are newer, its lease too, and all who wait go up.
-- KEYS: entry, strike, lease, index, expiry, strikes, accepted, waited.
-- ARGV: fingerprint, token, upstream, channel, messages: upstream accepted, entry gone, all go up; '1' where the entry goes.
local x = redis.pcall('HGET', KEYS[1], 'x')
if type(x) == 'table' then x = false end
if ARGV[8] == '1' and redis.call('DEL', KEYS[1], KEYS[2]) > 0 then
  redis.call('ZREM', KEYS[4], ARGV[1])
  redis.call('ZREM', KEYS[5], ARGV[1])
  redis.call('ZREM', KEYS[6], ARGV[1])
  redis.call('PUBLISH', ARGV[4], ARGV[6])
end
if redis.call('SADD', KEYS[7], ARGV[3]) == 1 then redis.call('PUBLISH', ARGV[4], ARGV[5]) end
if is_held(KEYS[3], ARGV[2]) then give_up(KEYS[3], KEYS[8], ARGV[4], ARGV[7]) end
return x or ''
