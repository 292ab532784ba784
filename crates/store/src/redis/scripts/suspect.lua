-- Marks entries as suspect, each if it is still the one that was meant.
-- KEYS: entries. ARGV: the number of each.
-- a write that takes no memory comes first: after it a full server lets the script finish
redis.pcall('HDEL', KEYS[1], '')
local marked = {}
for i = 1, #KEYS do
  if redis.pcall('HGET', KEYS[i], 'q') == ARGV[i] and not redis.call('HGET', KEYS[i], 's') then
    redis.call('HSET', KEYS[i], 's', '1')
    marked[i] = 1
  else
    marked[i] = 0
  end
end
return marked
