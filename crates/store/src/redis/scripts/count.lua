-- Adds replays to the tallies of entries that are still there, and returns how many each has now. What is no number is begun anew,
-- and a value that is no entry is passed over: one of them must not hold up the others.
-- KEYS: entries. ARGV: the most tenants; for each entry: replays, first and last time, tenants with a blank after each.
local most = tonumber(ARGV[1])
local totals = {}
for i = 1, #KEYS do
  local at = (i - 1) * 4 + 1
  local e = redis.pcall('HMGET', KEYS[i], 'q', 'f', 'l', 't', 'n')
  totals[i] = 0
  if not e.err and e[1] then
    local first, last = tonumber(e[2] or ''), tonumber(e[3] or '')
    if not tonumber(e[5] or '0') then redis.call('HDEL', KEYS[i], 'n') end
    totals[i] = redis.call('HINCRBY', KEYS[i], 'n', ARGV[at + 1])
    if not first or tonumber(ARGV[at + 2]) < first then redis.call('HSET', KEYS[i], 'f', ARGV[at + 2]) end
    if not last or tonumber(ARGV[at + 3]) > last then redis.call('HSET', KEYS[i], 'l', ARGV[at + 3]) end
    local tenants = e[4] or ''
    local _, known = string.gsub(tenants, ' ', ' ')
    for tenant in string.gmatch(ARGV[at + 4], '%S+') do
      if known < most and not string.find(' ' .. tenants, ' ' .. tenant .. ' ', 1, true) then
        tenants = tenants .. tenant .. ' '
        known = known + 1
      end
    end
    redis.call('HSET', KEYS[i], 't', tenants)
  end
end
return totals
