-- Hands the next job of a stream out: one that was handed out and not heard of for as long as a claim lives; else the one whose
-- time came first of those that wait for another attempt and of those that are new.
-- KEYS: stream, later. ARGV: now, life of a claim in ms.
local lapsed = redis.pcall('XPENDING', KEYS[1], GROUP, 'IDLE', ARGV[2], '-', '+', 1, RUNNING)
-- no stream, or no group, and so no job
if lapsed.err then
  if not string.find(lapsed.err, 'NOGROUP', 1, true) then return lapsed end
  return {'none', ''}
end
local function hand_out(entry)
  redis.call('ZREM', KEYS[2], entry)
  local claimed = redis.call('XCLAIM', KEYS[1], GROUP, RUNNING, 0, entry)[1]
  if claimed then return {'job', entry, claimed[2][2]} end
  -- it was deleted
  redis.call('XACK', KEYS[1], GROUP, entry)
  return {'again'}
end
if lapsed[1] then return hand_out(lapsed[1][1]) end
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', 0, 1)
local read = redis.call('XREADGROUP', 'GROUP', GROUP, RUNNING, 'COUNT', 1, 'STREAMS', KEYS[1], '>')
local new = read and read[1][2][1]
if new and due[1] and tonumber(due[2]) <= tonumber(new[2][4]) then
  wait_until(KEYS[1], KEYS[2], new[1], new[2][4], math.max(redis.call('PTTL', KEYS[1]), 86400000))
  new = nil
end
if new then return {'job', new[1], new[2][2]} end
if due[1] then return hand_out(due[1]) end
local next = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
return {'none', next[2] or ''}
