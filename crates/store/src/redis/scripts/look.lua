-- Looks an entry up, and where there is none takes the lease on the attempt.
-- KEYS: entry, lease, epoch, floor, index, waited. ARGV: now, schema, token (empty: only looks), lease in ms, fingerprint, '1' to pass
-- over an entry that was found to be of no use, another schema that is read.
local epoch = latest_forget(KEYS[3], KEYS[4])
-- one field first: most often there is nothing, and this is the cheapest way to know
local x = ARGV[6] ~= '1' and redis.pcall('HGET', KEYS[1], 'x')
if type(x) == 'string' and (tonumber(x) or 0) > tonumber(ARGV[1]) then
  local e = redis.call('HMGET', KEYS[1], 'c', 's', 'm', 'b', 'n', 'q')
  if (e[1] == ARGV[2] or e[1] == ARGV[7]) and not e[2] and is_listed(KEYS[5], ARGV[5], e[6]) then
    return {'entry', epoch, e[3] or '', e[4] or '', e[5] or '0'}
  end
end
if ARGV[3] == '' then return {'none', epoch} end
local lease = redis.pcall('SET', KEYS[2], ARGV[3], 'NX', 'PX', ARGV[4])
if not lease then
  local left = redis.call('PTTL', KEYS[2])
  if left >= 0 and left <= tonumber(ARGV[4]) then
    local holder = redis.pcall('GET', KEYS[2])
    -- only then is the end of the attempt told; where this fails, whoever waits looks again
    redis.pcall('SET', KEYS[6], '1', 'PX', ARGV[4])
    return {'elsewhere', epoch, type(holder) == 'string' and holder or ''}
  end
  -- no lease lives that long: it is a stranger's, and would block for as long
  lease = redis.pcall('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
end
-- a server that takes no writes still answers for what it knows
if lease.err then return {'trouble', epoch, lease.err} end
return {'lease', epoch}
