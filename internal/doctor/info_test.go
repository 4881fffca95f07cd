package doctor

import "testing"

// What INFO tells that no server can be brought to here.
func TestRedisInfoPlanted(t *testing.T) {
	for _, c := range []struct {
		what, info string
		look       func(string, map[string]string) []Finding
		want       Status
	}{
		{"of today", "# Server\r\nredis_version:7.0.15\r\n", redisVersion, OK},
		{"valkey", "redis_version:7.2.4\r\nvalkey_version:8.0.1\r\n", redisVersion, OK},
		{"old", "redis_version:5.0.14\r\n", redisVersion, Fault},
		{"unheard of", "", redisVersion, Fault},
		{"follows", "role:master\r\nconnected_slaves:1\r\nslave0:ip=10.0.0.1,port=6379,state=online,offset=1,lag=1\r\n", redisReplication, OK},
		{"lags", "role:master\r\nconnected_slaves:1\r\nslave0:ip=10.0.0.1,port=6379,state=online,offset=1,lag=60\r\n", redisReplication, Fault},
		{"still copies", "role:master\r\nconnected_slaves:1\r\nslave0:ip=10.0.0.1,port=6379,state=send_bulk,offset=1,lag=0\r\n", redisReplication, Fault},
	} {
		worst := OK
		for _, f := range c.look("redis", parseInfo(c.info)) {
			if f.Status != OK {
				worst = f.Status
			}
		}
		if worst != c.want {
			t.Errorf("%s is %s, want %s", c.what, worst, c.want)
		}
	}
	snapshots := redisDisk(t.Context(), nil, "redis", parseInfo("rdb_last_bgsave_status:err\r\naof_enabled:0\r\n"))
	if snapshots[0].Status != Fault || snapshots[1].Status != OK {
		t.Errorf("snapshots that fail: %+v", snapshots)
	}
}
