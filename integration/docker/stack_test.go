package docker

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	networks "github.com/testcontainers/testcontainers-go/network"
)

// A stack is services of infra/compose that run as the file says, but on ports that are
// free and on volumes and with secrets of their own.
type stack struct {
	t       *testing.T
	project *types.Project
	network string
	secrets string
	mark    string // before the names of volumes
	running map[string]testcontainers.Container
	publish map[string]string // ports of services that the file publishes none of
}

func newStack(t *testing.T, services ...string) *stack {
	t.Helper()
	s := &stack{t: t, project: compose(t, images()), running: map[string]testcontainers.Container{}, publish: map[string]string{}}
	var demanded []string
	for _, name := range services {
		demanded = append(demanded, s.project.Services[name].Image)
	}
	demand(t, demanded...)
	net, err := networks.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.removeVolumes()
		if err := net.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	s.network, s.mark, s.secrets = net.Name, net.Name+"-", makeSecrets(t)
	return s
}

// makeSecrets runs the script that README.md names, in a copy of its folder.
func makeSecrets(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	script := filepath.Join(dir, "make-secrets")
	if err := os.WriteFile(script, []byte(read(t, "infra", "compose", "make-secrets")), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, says := range []string{"made", "there already"} {
		if out, err := exec.Command(script).CombinedOutput(); err != nil || !strings.Contains(string(out), says) {
			t.Fatalf("make-secrets: %v, %s", err, out)
		}
	}
	return filepath.Join(dir, "secrets")
}

// up starts the services, each once those are as it demands that it depends on.
func (s *stack) up(names ...string) {
	s.t.Helper()
	for _, name := range names {
		if s.running[name] != nil {
			continue
		}
		service := s.project.Services[name]
		for on := range service.DependsOn {
			s.up(on)
		}
		for on, how := range service.DependsOn {
			s.await(on, how.Condition)
		}
		s.running[name] = s.run(name)
	}
}

func (s *stack) await(name, condition string) {
	s.t.Helper()
	switch c := s.running[name]; condition {
	case types.ServiceConditionCompletedSuccessfully:
		if code, wrote := ended(s.t, c); code != 0 {
			s.t.Fatalf("%s ended with %d: %s", name, code, wrote)
		}
	case types.ServiceConditionHealthy:
		healthy(s.t, c, "healthy")
	}
}

// run starts a container of the service; another command than the file's may be given.
func (s *stack) run(name string, command ...string) testcontainers.Container {
	s.t.Helper()
	service := s.project.Services[name]
	env := map[string]string{}
	for key, value := range service.Environment {
		env[key] = *value
	}
	request := testcontainers.ContainerRequest{
		Image:          service.Image,
		Cmd:            service.Command,
		Env:            env,
		Networks:       []string{s.network},
		NetworkAliases: map[string][]string{s.network: {name}},
		ConfigModifier: func(c *container.Config) { c.Healthcheck = health(service.HealthCheck) },
		HostConfigModifier: func(h *container.HostConfig) {
			h.ReadonlyRootfs, h.CapDrop, h.SecurityOpt, h.Binds = service.ReadOnly, service.CapDrop, service.SecurityOpt, s.binds(service)
		},
	}
	if len(command) > 0 {
		request.Cmd, request.NetworkAliases = command, nil
	} else {
		request.ExposedPorts = s.ports(service)
	}
	return start(s.t, request)
}

// ports are those that the file publishes, and what the test wants besides.
func (s *stack) ports(service types.ServiceConfig) (all []string) {
	for _, port := range service.Ports {
		all = append(all, strconv.Itoa(int(port.Target))+"/tcp")
	}
	if port, ok := s.publish[service.Name]; ok {
		all = append(all, port+"/tcp")
	}
	return all
}

func (s *stack) binds(service types.ServiceConfig) (all []string) {
	for _, v := range service.Volumes {
		bind := v.Source + ":" + v.Target
		if v.Type == types.VolumeTypeVolume {
			bind = s.mark + bind
		}
		if v.ReadOnly {
			bind += ":ro"
		}
		all = append(all, bind)
	}
	for _, secret := range service.Secrets {
		all = append(all, filepath.Join(s.secrets, secret.Source)+":"+secret.Target+":ro")
	}
	return all
}

// health is the check that the file gives instead of the image's own.
func health(h *types.HealthCheckConfig) *container.HealthConfig {
	switch {
	case h == nil:
		return nil
	case h.Disable:
		return &container.HealthConfig{Test: []string{"NONE"}}
	}
	own := &container.HealthConfig{Test: h.Test, Retries: int(*h.Retries), Interval: time.Duration(*h.Interval), Timeout: time.Duration(*h.Timeout)}
	if h.StartPeriod != nil {
		own.StartPeriod = time.Duration(*h.StartPeriod)
	}
	return own
}

// start starts a container whose ports are published on the loopback address alone, and ends
// it with the test.
func start(t *testing.T, request testcontainers.ContainerRequest) testcontainers.Container {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), allowed)
	defer cancel()
	own, bindings := request.HostConfigModifier, loopback(ctx, t, request)
	request.HostConfigModifier = func(h *container.HostConfig) {
		if own != nil {
			own(h)
		}
		h.PortBindings = bindings
	}
	c, err := testcontainers.GenericContainer(ctx, testcontainers.GenericContainerRequest{ContainerRequest: request, Started: true})
	t.Cleanup(func() {
		if c == nil {
			return
		}
		if t.Failed() {
			t.Logf("%s wrote:\n%s", request.Image, logs(t, c))
		}
		if err := testcontainers.TerminateContainer(c); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// loopback publishes the request's ports, or else the image's, on free ports of the loopback address.
func loopback(ctx context.Context, t *testing.T, request testcontainers.ContainerRequest) network.PortMap {
	t.Helper()
	ports := request.ExposedPorts
	if len(ports) == 0 {
		image, err := daemon(t).ImageInspect(ctx, request.Image)
		if err != nil {
			t.Fatal(err)
		}
		for port := range image.Config.ExposedPorts {
			ports = append(ports, port)
		}
	}
	bindings := network.PortMap{}
	for _, port := range ports {
		bindings[network.MustParsePort(port)] = []network.PortBinding{{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: "0"}}
	}
	return bindings
}

// address is where the container's port is published.
func address(t *testing.T, c testcontainers.Container, port string) string {
	t.Helper()
	at, err := c.PortEndpoint(t.Context(), port+"/tcp", "")
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// removeVolumes removes the named volumes of the test, once their containers are gone.
func (s *stack) removeVolumes() {
	for name := range s.project.Volumes {
		_, _ = daemon(s.t).VolumeRemove(context.Background(), s.mark+name, client.VolumeRemoveOptions{Force: true}) // an error means that it was never made
	}
}
