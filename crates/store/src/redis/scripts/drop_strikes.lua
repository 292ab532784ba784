-- Removes strikes, each if it was not changed since.
-- KEYS: strikes, rows. ARGV: for each row its fingerprint and its turn.
for i = 2, #KEYS do
  local key, turn = ARGV[(i - 1) * 2 - 1], ARGV[(i - 1) * 2]
  local now = redis.call('ZSCORE', KEYS[1], key)
  if now and tonumber(now) == tonumber(turn) then
    redis.call('DEL', KEYS[i])
    redis.call('ZREM', KEYS[1], key)
  end
end
return 1
