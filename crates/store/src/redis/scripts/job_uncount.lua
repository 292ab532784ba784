-- Counts jobs no more whose end has come, some of them.
-- KEYS: records, sums. ARGV: now, how many at most.
local over = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
for _, record in ipairs(over) do
  redis.call('ZREM', KEYS[1], record)
  sum_up(KEYS[2], record, -1)
end
return #over
