-- Nothing of an operation is pending any more. Returns whether something was.
-- KEYS: operation, looks. ARGV: id, now.
local was = redis.call('ZREM', KEYS[2], ARGV[1])
local expires = tonumber(redis.call('HGET', KEYS[1], 'x') or '')
if not expires or expires <= tonumber(ARGV[2]) then return 0 end
return was
