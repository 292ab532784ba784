-- Reads all that a record is decided on.
-- KEYS: entry, strike, epoch, floor, wide, keyed, index. ARGV: fence, fingerprint.
local e = redis.pcall('HMGET', KEYS[1], 'q', 's', 'm', 'b', 'n', 'f', 'l', 't', 'x', 'c')
if e.err then e = {} end
if not is_listed(KEYS[7], ARGV[2], e[1]) then e[3] = '' end
local strike = redis.pcall('GET', KEYS[2])
if type(strike) == 'table' then strike = false end
local out = {}
for i = 1, 10 do out[i] = e[i] or '' end
out[11] = strike or ''
out[12] = redis.call('GET', KEYS[3]) or ''
out[13] = latest_unnoted(KEYS[3], KEYS[4], KEYS[5], KEYS[6])
out[14] = redis.call('ZSCORE', KEYS[6], ARGV[2]) or '0'
out[15] = redis.call('ZRANGEBYSCORE', KEYS[5], '(' .. ARGV[1], '(+inf')
return out
