-- Adds replays to the tallies of entries that are still there, and returns how many each has now.
-- KEYS: entries. ARGV: the most tenants; for each entry: replays, first and last time, tenants with a blank after each.
local most = tonumber(ARGV[1])
local totals = {}
for i = 1, #KEYS do
  local at = (i - 1) * 4 + 1
  local e = redis.call('HMGET', KEYS[i], 'q', 'f', 'l', 't')
  if e[1] then
    totals[i] = redis.call('HINCRBY', KEYS[i], 'n', ARGV[at + 1])
    if not e[2] or tonumber(ARGV[at + 2]) < tonumber(e[2]) then redis.call('HSET', KEYS[i], 'f', ARGV[at + 2]) end
    if not e[3] or tonumber(ARGV[at + 3]) > tonumber(e[3]) then redis.call('HSET', KEYS[i], 'l', ARGV[at + 3]) end
    local tenants = e[4] or ''
    local _, known = string.gsub(tenants, ' ', ' ')
    for tenant in string.gmatch(ARGV[at + 4], '%S+') do
      if known < most and not string.find(' ' .. tenants, ' ' .. tenant .. ' ', 1, true) then
        tenants = tenants .. tenant .. ' '
        known = known + 1
      end
    end
    redis.call('HSET', KEYS[i], 't', tenants)
  else
    totals[i] = 0
  end
end
return totals
