package docker

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

const root = "../.."

// compose reads infra/compose as `docker compose` does, which refuses what the specification
// does not know.
func compose(t *testing.T, env map[string]string) *types.Project {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join(root, "infra", "compose"))
	if err != nil {
		t.Fatal(err)
	}
	project, err := loader.LoadWithContext(context.Background(), types.ConfigDetails{
		WorkingDir: dir, ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, "compose.yaml")}}, Environment: env,
	})
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// images are the settings that scripts/images prints.
func images() map[string]string {
	env := map[string]string{}
	for _, name := range []string{"COORDSVC_IMAGE", "VALKEY_IMAGE", "DYNAMODB_IMAGE", "PROMETHEUS_IMAGE"} {
		if image, ok := os.LookupEnv(name); ok {
			env[name] = image
		}
	}
	return env
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// The stack is read as a whole, its images are ones that do not move, nothing is published
// but on this machine, what it mounts is there, and each setting is one of the service.
func TestComposeFile(t *testing.T) {
	project := compose(t, nil)
	if names := project.ServiceNames(); !slices.Equal(names, []string{"coordsvc", "dynamodb", "grafana", "prometheus", "tables", "valkey"}) {
		t.Errorf("services %v", names)
	}
	settings := read(t, "cmd", "coordsvc", "config.go")
	for name, service := range project.Services {
		if !regexp.MustCompile(`.:(local|v?[0-9][0-9.]+[a-z-]*)$`).MatchString(service.Image) {
			t.Errorf("%s: the image %s moves", name, service.Image)
		}
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %d is published on %q", name, port.Target, port.HostIP)
			}
			if port.Target == 9090 && name == "coordsvc" {
				t.Error("the ops listener, which asks for no key, is published")
			}
		}
		for _, volume := range service.Volumes {
			if volume.Type != types.VolumeTypeBind {
				continue
			}
			if _, err := os.Stat(volume.Source); err != nil || !volume.ReadOnly {
				t.Errorf("%s: %s, read-only %v: %v", name, volume.Source, volume.ReadOnly, err)
			}
		}
		for key := range service.Environment {
			if strings.HasPrefix(key, "COORD_") && !strings.Contains(settings, `{"`+key+`"`) {
				t.Errorf("%s: there is no setting %s", name, key)
			}
		}
	}
	for _, name := range []string{"coordsvc", "tables"} {
		s := project.Services[name]
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || len(s.Secrets) != 1 || s.Secrets[0].Source != "keys" {
			t.Errorf("%s: read-only %v, dropped %v, secrets %v", name, s.ReadOnly, s.CapDrop, s.Secrets)
		}
	}
	engine := "ghcr.io/nubo-db/dynoxide:" + regexp.MustCompile(`DYNOXIDE_VERSION +:= (\S+)`).FindStringSubmatch(read(t, "Makefile"))[1]
	if image := project.Services["dynamodb"].Image; image != engine {
		t.Errorf("the stack has %s, and the tests run on %s", image, engine)
	}
	for _, ignored := range []string{".gitignore", ".dockerignore"} {
		if !strings.Contains(read(t, ignored), "infra/compose/secrets") {
			t.Errorf("%s does not keep the secrets out", ignored)
		}
	}
}

// Both Dockerfiles make the same image of what they are given.
func TestDockerfilesAgree(t *testing.T) {
	instructions := func(name string) (all []string) {
		text := regexp.MustCompile(`(?m)^\s*#.*\n`).ReplaceAllString(read(t, name), "")
		text = strings.ReplaceAll(text, "\\\n", "")
		text = text[strings.LastIndex(text, "FROM "):]
		for line := range strings.Lines(text) {
			fields := strings.Fields(line)
			if len(fields) == 0 {
				continue
			}
			if fields[0] == "COPY" { // from elsewhere, to the same place with the same owner
				fields = slices.DeleteFunc(fields, func(f string) bool { return strings.HasPrefix(f, "--from=") })
				fields[len(fields)-2] = filepath.Base(fields[len(fields)-2])
			}
			all = append(all, strings.Join(fields, " "))
		}
		return all
	}
	released, local := instructions("Dockerfile"), instructions("Dockerfile.local")
	if len(released) < 10 || !slices.Equal(released, local) {
		t.Errorf("Dockerfile      %q\nDockerfile.local %q", released, local)
	}
	// The profile of the release has all modules compiled anew, for which a test does not wait.
	for name, build := range map[string]string{
		"Dockerfile":     "CGO_ENABLED=0 go build -pgo=cmd/coordsvc/serve.pgo -trimpath -ldflags='-s -w'",
		"scripts/images": "CGO_ENABLED=0 go build -trimpath -ldflags='-s -w'",
	} {
		if !strings.Contains(read(t, name), build) {
			t.Errorf("%s does not build by %s", name, build)
		}
	}
	if info, err := os.Stat(filepath.Join(root, "cmd", "coordsvc", "serve.pgo")); err != nil || info.Size() == 0 {
		t.Errorf("the profile that the release is compiled with: %v", err)
	}
}
