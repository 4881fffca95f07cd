package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A bed is everything that runs during the measurement of sessions.
type bed struct {
	*lab
	store     *process // Redis
	redisAddr string
	key       string
	floor     server
	scs       server
	warm      server // coordsvc with Redis
	without   server // coordsvc with a Redis that is down
}

type server struct {
	*process
	url string
}

// sessions measures POST /v1/sessions/verify: warm, cold, and with Redis down.
func sessions(ctx context.Context, o options) error {
	l, err := openLab(ctx, o.program, asReleased)
	if err != nil {
		return err
	}
	defer l.close()
	b := &bed{lab: l, key: bootstrapKey}
	if err := b.open(ctx); err != nil {
		return err
	}
	tokens, err := b.logins(ctx, o.requests)
	if err != nil {
		return err
	}
	cookie, err := b.scsCookie(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("%s, %d cores, %d rounds × %d requests, %d connections\n", runtime.Version(), runtime.NumCPU(), o.rounds, o.requests, o.connections)
	loads := b.loads(tokens, cookie)
	rounds := map[string][]sample{}
	for round := range o.rounds {
		for _, l := range loads {
			s, err := l.measure(ctx, o)
			if err != nil {
				return err
			}
			rounds[l.name] = append(rounds[l.name], s)
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, o.rounds)
	}
	return report(os.Stdout, loads, rounds)
}

// loads are the cases, the floor first and the peer last. The warm cases ask for few sessions, which
// stay in the cache; the cold one asks once for each of many after a FLUSHDB.
func (b *bed) loads(tokens []string, cookie string) []load {
	const hot = 500
	client := redis.NewClient(&redis.Options{Addr: b.redisAddr})
	flush := func(ctx context.Context) error { return client.FlushDB(ctx).Err() } // floor and peer have a database of their own
	warmUp := func(ctx context.Context) error {
		_, err := load{request: b.verify(b.warm.url, tokens[:hot])}.send(ctx, options{requests: hot, connections: 16})
		return err
	}
	return []load{
		{name: "floor: echo + one GET", server: b.floor.process, redis: b.store, request: get(b.floor.url+"/check", "")},
		{name: "verify warm", server: b.warm.process, redis: b.store, request: b.verify(b.warm.url, tokens[:hot]), prepare: warmUp},
		{name: "verify cold", server: b.warm.process, redis: b.store, request: b.verify(b.warm.url, tokens), prepare: flush},
		{name: "verify, Redis down", server: b.without.process, request: b.verify(b.without.url, tokens[:hot])},
		{name: "scs + goredisstore, load and commit", server: b.scs.process, redis: b.store, request: get(b.scs.url+"/", cookie)},
	}
}

func (b *bed) verify(url string, tokens []string) func(context.Context, int) (*http.Request, error) {
	return func(ctx context.Context, n int) (*http.Request, error) {
		return b.post(ctx, url+"/v1/sessions/verify", `{"token":"`+tokens[n%len(tokens)]+`"}`)
	}
}

func (b *bed) post(ctx context.Context, url, body string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err == nil {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+b.key)
	}
	return req, err
}

func get(url, cookie string) func(context.Context, int) (*http.Request, error) {
	return func(ctx context.Context, _ int) (*http.Request, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err == nil && cookie != "" {
			req.Header.Set("Cookie", cookie)
		}
		return req, err
	}
}

// logins makes the sessions, one user each.
func (b *bed) logins(ctx context.Context, n int) ([]string, error) {
	tokens := make([]string, n)
	for i := range tokens {
		req, err := b.post(ctx, b.warm.url+"/v1/sessions", fmt.Sprintf(`{"user_id":"user-%d"}`, i))
		if err != nil {
			return nil, err
		}
		var made struct{ Token string }
		if err := answer(req, http.StatusCreated, &made); err != nil {
			return nil, fmt.Errorf("login %d: %w", i, err)
		}
		tokens[i] = made.Token
	}
	return tokens, nil
}

// scsCookie starts a session of the peer's.
func (b *bed) scsCookie(ctx context.Context) (string, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.scs.url+"/", nil)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Client{Jar: jar}).Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	for _, c := range resp.Cookies() {
		return c.Name + "=" + c.Value, nil
	}
	return "", errors.New("the peer set no cookie")
}

func answer(req *http.Request, want int, into any) error {
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != want {
		return fmt.Errorf("answered %d: %s", resp.StatusCode, raw)
	}
	return json.Unmarshal(raw, into)
}

// open starts the stores, coordsvc twice, the floor and the peer.
func (b *bed) open(ctx context.Context) (err error) {
	if b.redisAddr, b.store, err = b.redis(ctx); err != nil {
		return err
	}
	dynamo, _, err := b.engine(ctx, "dynoxide", func(host, port string) []string {
		return []string{"serve", "--host", host, "--port", port, "--log", "quiet"}
	})
	if err != nil {
		return err
	}
	nowhere, err := freeAddr()
	if err != nil {
		return err
	}
	env, err := b.settings(dynamo)
	if err != nil {
		return err
	}
	create := exec.CommandContext(ctx, b.coordsvc, "tables", "create") //nolint:gosec // built above
	create.Env = append(os.Environ(), env...)
	if out, err := create.CombinedOutput(); err != nil {
		return fmt.Errorf("tables create: %w\n%s", err, out)
	}
	if b.warm, err = b.serve(ctx, "/readyz", append(env, "COORD_REDIS_URL=redis://"+b.redisAddr), b.coordsvc, "serve"); err != nil {
		return err
	}
	if b.without, err = b.serve(ctx, "/readyz", append(env, "COORD_REDIS_URL=redis://"+nowhere), b.coordsvc, "serve"); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if b.floor, err = b.serve(ctx, "/check", nil, self, "floor"); err != nil {
		return err
	}
	b.scs, err = b.serve(ctx, "/", nil, self, "scs")
	return err
}

// serve starts a server and waits until it answers. A coordsvc takes its
// addresses from the environment, floor and peer take theirs as arguments.
func (b *bed) serve(ctx context.Context, health string, env []string, program string, args ...string) (server, error) {
	addr, err := freeAddr()
	if err != nil {
		return server{}, err
	}
	ops := addr
	if env != nil {
		if ops, err = freeAddr(); err != nil {
			return server{}, err
		}
		env = append(env, "COORD_HTTP_ADDR="+addr, "COORD_OPS_ADDR="+ops)
	} else {
		args = append(args, addr, b.redisAddr)
	}
	p, err := b.launch(ctx, ops, health, env, program, args...)
	return server{p, "http://" + addr}, err
}

// settings are those of both coordsvc processes.
func (b *bed) settings(dynamo string) ([]string, error) {
	secret := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("b"), 32))
	keys, bootstrap := filepath.Join(b.dir, "keys"), filepath.Join(b.dir, "bootstrap")
	err := errors.Join(
		os.WriteFile(keys, []byte("route "+secret+"\nseal "+secret+"\n"), 0o600),
		os.WriteFile(bootstrap, []byte(b.key+"\n"), 0o600),
	)
	return []string{
		"COORD_DYNAMODB=http://" + dynamo, "COORD_KEYS_FILE=" + keys, "COORD_BOOTSTRAP_KEY_FILE=" + bootstrap,
		"COORD_REDIS_BUDGET_MS=50", // client, server and stores share the cores: 5 ms would measure the queue
		"AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=bench", "AWS_SECRET_ACCESS_KEY=bench",
	}, err
}
