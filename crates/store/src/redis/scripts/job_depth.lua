-- How many jobs of each stream wait and run.
-- KEYS: streams.
local depths = {}
for i, stream in ipairs(KEYS) do
  local run = running(stream)
  depths[i * 2 - 1], depths[i * 2] = math.max(redis.call('XLEN', stream) - run, 0), run
end
return depths
