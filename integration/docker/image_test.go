package docker

import (
	"context"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

// The image alone is the service on its embedded store: as nobody, with nothing writable but
// its data, healthy by its own check, and with its state when a new container takes the data over.
func TestImage(t *testing.T) {
	t.Parallel()
	image := compose(t, images()).Services["coordsvc"].Image
	demand(t, image)
	info, err := daemon(t).ImageInspect(t.Context(), image)
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range []string{"8080/tcp", "9090/tcp", "9091/tcp"} {
		if _, ok := info.Config.ExposedPorts[port]; !ok {
			t.Errorf("%s is not exposed", port)
		}
	}
	if info.Config.User != "65532:65532" || !slices.Equal(info.Config.Entrypoint, []string{"/coordsvc"}) || len(info.Config.Cmd) != 1 {
		t.Errorf("it runs %v %v as %q", info.Config.Entrypoint, info.Config.Cmd, info.Config.User)
	}
	t.Logf("%s: %.1f MB", image, float64(info.Size)/1e6)

	volume := "coordsvc-test-" + t.Name()
	t.Cleanup(func() {
		_, _ = daemon(t).VolumeRemove(context.Background(), volume, client.VolumeRemoveOptions{Force: true})
	})
	run := func() testcontainers.Container {
		c := start(t, testcontainers.ContainerRequest{
			Image: image,
			// The image's own check, asked more often.
			ConfigModifier: func(c *container.Config) { c.Healthcheck = &container.HealthConfig{Interval: time.Second} },
			HostConfigModifier: func(h *container.HostConfig) {
				h.ReadonlyRootfs, h.CapDrop, h.Binds = true, []string{"ALL"}, []string{volume + ":/data"}
			},
		})
		healthy(t, c, "healthy")
		return c
	}
	c := run()
	if code, said := inside(t, c, "/coordsvc", "healthcheck", "--ready"); code != 0 {
		t.Errorf("not ready: %s", said)
	}
	if code, said := inside(t, c, "/coordsvc", "healthcheck", "--ops-addr", ":1"); code != 1 {
		t.Errorf("nobody listens, and the check ends with %d: %s", code, said)
	}
	_, said := inside(t, c, "/coordsvc", "keys", "create", "--tenant", "default")
	api := caller{t: t, url: "http://" + address(t, c, "8080"), key: regexp.MustCompile(`csk_\w+`).FindString(said)}
	first := api.call(200, "/v1/leases/report/acquire", `{"owner":"one","ttl_ms":600000,"request_id":"r1"}`)
	if err := testcontainers.TerminateContainer(c); err != nil {
		t.Fatal(err)
	}
	api.url = "http://" + address(t, run(), "8080")
	if again := api.call(200, "/v1/leases/report/acquire", `{"owner":"one","ttl_ms":600000,"request_id":"r1"}`); again["fencing_token"] != first["fencing_token"] {
		t.Errorf("another container on the same data grants %v, before %v", again["fencing_token"], first["fencing_token"])
	}
}
