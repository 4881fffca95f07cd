package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	oldestRedis = 6               // the major version
	maxLag      = 5 * time.Second // of a replica
	maxSkew     = time.Second     // between Redis' clock and this node's
	redisWait   = 2 * time.Second // for all questions to one node
)

// Redis checks the server behind the client, of a Cluster each primary.
func Redis(ctx context.Context, client redis.UniversalClient, now func() time.Time) []Finding {
	cluster, ok := client.(*redis.ClusterClient)
	if !ok {
		return redisNode(ctx, client, "redis", now)
	}
	nodes := make(chan []Finding, 1)
	nodes <- nil
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		found := redisNode(ctx, node, node.Options().Addr, now)
		nodes <- append(<-nodes, found...) // they are asked at once
		return nil
	})
	all := <-nodes
	if err != nil {
		all = append(all, unreachable("redis", err))
	}
	return all
}

func unreachable(subject string, err error) Finding {
	return Finding{"redis answers", subject, Fault, err.Error(), "check COORD_REDIS_URL, the network, and the password"}
}

func redisNode(ctx context.Context, client redis.Cmdable, name string, now func() time.Time) []Finding {
	ctx, cancel := context.WithTimeout(ctx, redisWait)
	defer cancel()
	text, err := client.Info(ctx).Result()
	if err != nil {
		return []Finding{unreachable(name, err)}
	}
	info := parseInfo(text)
	all := append(redisVersion(name, info), redisMemory(name, info)...)
	all = append(all, redisReplication(name, info)...)
	all = append(all, redisDisk(ctx, client, name, info)...)
	all = append(all, redisClock(ctx, client, name, now))
	return append(all, redisScripts(ctx, client, name))
}

// parseInfo reads the lines name:value of INFO.
func parseInfo(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}

func redisVersion(name string, info map[string]string) []Finding {
	version := info["redis_version"]
	if valkey := info["valkey_version"]; valkey != "" {
		version = valkey
	}
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	return []Finding{found("redis version", name, Fault, err != nil || n < oldestRedis, version, fmt.Sprintf("use version %d or newer", oldestRedis))}
}

// redisMemory: without a bound memory ends in the system's; with one, a write must not be refused.
func redisMemory(name string, info map[string]string) []Finding {
	policy := info["maxmemory_policy"]
	bounded := info["maxmemory"] != "0" && info["maxmemory"] != ""
	return []Finding{
		found("redis memory", name, Warning, !bounded, "maxmemory "+info["maxmemory"], "set maxmemory below the machine's memory"),
		found("redis eviction", name, Fault, bounded && policy == "noeviction", "maxmemory-policy "+policy, "set maxmemory-policy to volatile-lru: every key has a TTL, and none is worth a refused write"),
	}
}

func redisReplication(name string, info map[string]string) []Finding {
	if info["role"] != "master" {
		return []Finding{{"redis role", name, Fault, "is a " + info["role"], "name the primary, the sentinels or the cluster in COORD_REDIS_URL"}}
	}
	all := []Finding{{Check: "redis role", Subject: name, Status: OK, Detail: "is a primary"}}
	replicas, _ := strconv.Atoi(info["connected_slaves"])
	all = append(all, found("redis replicas", name, Warning, replicas == 0, fmt.Sprintf("%d connected", replicas), "add a replica, and Sentinel or Cluster: nothing takes over"))
	for i := range replicas {
		line := info[fmt.Sprint("slave", i)]
		fields := map[string]string{}
		for part := range strings.SplitSeq(line, ",") {
			key, value, _ := strings.Cut(part, "=")
			fields[key] = value
		}
		lag, err := strconv.Atoi(fields["lag"])
		bad := err != nil || fields["state"] != "online" || time.Duration(lag)*time.Second > maxLag
		all = append(all, found("redis replication", name, Fault, bad, line, "a failover would lose what the replica lacks: see its log and the network"))
	}
	return all
}

// redisDisk: nothing in Redis is the only copy of anything durable, so the disk may not
// hold up a decision, nor refuse one.
func redisDisk(ctx context.Context, client redis.Cmdable, name string, info map[string]string) []Finding {
	all := []Finding{found("redis snapshots", name, Fault, info["rdb_last_bgsave_status"] == "err", "the last one: "+info["rdb_last_bgsave_status"], "free the disk, or set stop-writes-on-bgsave-error no: writes are refused otherwise")}
	if info["aof_enabled"] != "1" {
		return append(all, Finding{Check: "redis append-only file", Subject: name, Status: OK, Detail: "off"})
	}
	setting, err := client.ConfigGet(ctx, "appendfsync").Result()
	if err != nil {
		return append(all, Finding{"redis append-only file", name, Unknown, err.Error(), "let doctor read CONFIG GET, or look yourself"})
	}
	return append(all, found("redis append-only file", name, Warning, setting["appendfsync"] == "always", "appendfsync "+setting["appendfsync"], "set appendfsync everysec: every decision waits for the disk"))
}

func redisClock(ctx context.Context, client redis.Cmdable, name string, now func() time.Time) Finding {
	sent := now()
	at, err := client.Time(ctx).Result()
	if err != nil {
		return Finding{"redis clock", name, Unknown, err.Error(), "let the user run TIME"}
	}
	received := now()
	skew := max(sent.Sub(at), at.Sub(received), 0)
	return found("redis clock", name, Fault, skew > maxSkew, fmt.Sprintf("off by %v or less from this node's", skew.Round(time.Millisecond)), "set both clocks by NTP: cached sessions count by Redis' clock")
}

func redisScripts(ctx context.Context, client redis.Cmdable, name string) Finding {
	err := client.Eval(ctx, "return redis.call('TIME')[1]", nil).Err()
	detail := "run"
	if err != nil {
		detail = err.Error()
	}
	return found("redis scripts", name, Fault, err != nil, detail, "let the user run EVAL and EVALSHA")
}
