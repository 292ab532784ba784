-- In front of every script. The number of the latest forget. Where there is none, all data was lost, or there never was any: it
-- begins with the clock, so that no number of before comes again, and what began before is barred.
local function latest_forget(epoch, floor)
  local number = redis.call('GET', epoch)
  if number then return number end
  local t = redis.call('TIME')
  number = string.format('%d%06d', t[1], t[2])
  -- a server that takes no writes still answers for what it knows
  redis.pcall('SET', epoch, number)
  redis.pcall('SET', floor, number)
  return number
end
-- Whether a lease is the one with this token; another's value is not.
local function is_held(lease, token)
  return token ~= '' and redis.pcall('GET', lease) == token
end
-- Gives a lease up, and says so if another process waits for that.
local function give_up(lease, waited, channel, message)
  if redis.call('DEL', lease, waited) > 1 then redis.call('PUBLISH', channel, message) end
end
-- Whether the index has this entry. One that it does not have is none: a forget of many would not find it.
local function is_listed(index, member, number)
  local at = redis.pcall('ZSCORE', index, member)
  return type(at) == 'string' and tonumber(at) == tonumber(number or '')
end
