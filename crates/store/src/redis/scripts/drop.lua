-- Removes entries, each if it is still the one that was meant.
-- KEYS: index, expiry, entries. ARGV: for each entry its fingerprint and its number in the index (empty: it was not in it).
local gone = {}
for i = 3, #KEYS do
  local key, number = ARGV[(i - 2) * 2 - 1], ARGV[(i - 2) * 2]
  local now = redis.call('ZSCORE', KEYS[1], key)
  if (now and tonumber(now) == tonumber(number)) or (not now and number == '') then
    redis.call('DEL', KEYS[i])
    redis.call('ZREM', KEYS[1], key)
    redis.call('ZREM', KEYS[2], key)
    gone[i - 2] = 1
  else
    gone[i - 2] = 0
  end
end
return gone
