-- Writes what was decided, if all that it was decided on is as it was.
-- KEYS: entry, strike, epoch, lease, index, expiry, seq, strikes, turn, waited.
-- ARGV: 1 epoch, 2 q, 3 s, 4 strike, as they were; 5 fingerprint, 6 token of the lease, 7 channel, 8 message, 9 now,
--       10 new strike (empty: none), 11 its life in ms, 12 the most strikes, 13 whether an entry is put (1 or 0),
--       14 its head, 15 its body, 16 when it expires, 17 schema, 18 whether the tally goes on (1 or 0), 19 life of the key in ms,
--       20 the most entries, 21 the most victims at once, 22 replays that an imported entry brings, 23 and 24 their first and
--       last time (empty: none), 25 their tenants.
local function old(field)
  local value = redis.pcall('HGET', KEYS[1], field)
  if type(value) == 'table' then return '' end
  return value or ''
end
local strike = redis.pcall('GET', KEYS[2])
if type(strike) == 'table' then strike = false end
if (redis.call('GET', KEYS[3]) or '') ~= ARGV[1] or old('q') ~= ARGV[2] or old('s') ~= ARGV[3]
  or (strike or '') ~= ARGV[4] then
  return {'changed'}
end
if ARGV[10] ~= '' then
  redis.call('SET', KEYS[2], ARGV[10], 'PX', ARGV[11])
  redis.call('ZADD', KEYS[8], next_number(KEYS[9], KEYS[8]), ARGV[5])
end
local seq = '0'
if ARGV[13] == '1' then
  seq = next_number(KEYS[7], KEYS[5])
  if ARGV[18] ~= '1' then redis.call('DEL', KEYS[1]) end
  redis.call('HDEL', KEYS[1], 's')
  redis.call('HSET', KEYS[1], 'm', ARGV[14], 'b', ARGV[15], 'x', ARGV[16], 'c', ARGV[17], 'q', seq)
  if ARGV[22] ~= '0' then
    redis.call('HSET', KEYS[1], 'n', ARGV[22], 't', ARGV[25])
    if ARGV[23] ~= '' then redis.call('HSET', KEYS[1], 'f', ARGV[23]) end
    if ARGV[24] ~= '' then redis.call('HSET', KEYS[1], 'l', ARGV[24]) end
  end
  redis.call('PEXPIRE', KEYS[1], ARGV[19])
  redis.call('ZADD', KEYS[5], seq, ARGV[5])
  redis.call('ZADD', KEYS[6], ARGV[16], ARGV[5])
  if is_held(KEYS[4], ARGV[6]) then redis.call('DEL', KEYS[4], KEYS[10]) end
  redis.call('PUBLISH', ARGV[7], ARGV[8])
end
local most = tonumber(ARGV[21])
local excess = math.min(redis.call('ZCARD', KEYS[5]) - tonumber(ARGV[20]), most)
local expired, oldest = {}, {}
if excess > 0 then
  -- with their numbers, so that one that is recorded anew in between stays
  for i, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', ARGV[9], 'LIMIT', 0, excess)) do
    local number = redis.call('ZSCORE', KEYS[5], member)
    expired[i] = {member, number and string.format('%.0f', number) or ''}
  end
  oldest = redis.call('ZRANGE', KEYS[5], 0, excess - 1, 'WITHSCORES')
end
local strikes = {}
local too_many = math.min(redis.call('ZCARD', KEYS[8]) - tonumber(ARGV[12]), most)
if too_many > 0 then strikes = redis.call('ZRANGE', KEYS[8], 0, too_many - 1, 'WITHSCORES') end
return {'done', seq, excess, expired, oldest, strikes}
