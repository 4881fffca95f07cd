package main

import (
	"strings"
	"testing"
)

// The standard variables say whether, where and which requests are traced; a wrong one is named with its fix.
func TestTraceSettings(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318"
	for _, c := range []struct {
		name     string
		env      []string
		endpoint string // "" = off
		sampler  string
		mistake  string
	}{
		{"nothing is set", nil, "", "", ""},
		{"a collector for every signal", []string{endpoint}, "http://c:4318/v1/traces", "ParentBased{root:AlwaysOnSampler,", ""},
		{"below a path", []string{"OTEL_EXPORTER_OTLP_ENDPOINT=https://c/otlp/"}, "https://c/otlp/v1/traces", "ParentBased{", ""},
		{"one for traces alone is taken as it is", []string{endpoint, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://d:1/x"}, "http://d:1/x", "ParentBased{", ""},
		{"switched off", []string{endpoint, "OTEL_SDK_DISABLED=true"}, "", "", ""},
		{"no traces", []string{endpoint, "OTEL_TRACES_EXPORTER=none"}, "", "", ""},
		{"a share of all", []string{endpoint, "OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.25"}, "http://c:4318/v1/traces", "TraceIDRatioBased{0.25}", ""},
		{"a share of those without a caller's trace", []string{endpoint, "OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.01"}, "http://c:4318/v1/traces", "ParentBased{root:TraceIDRatioBased{0.01},", ""},
		{"only what a caller traces", []string{endpoint, "OTEL_TRACES_SAMPLER=parentbased_always_off"}, "http://c:4318/v1/traces", "ParentBased{root:AlwaysOffSampler,", ""},
		{"a share that is none", []string{endpoint, "OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=2"}, "", "", `OTEL_TRACES_SAMPLER_ARG is "2"`},
		{"a share that is no number", []string{endpoint, "OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=NaN"}, "", "", `OTEL_TRACES_SAMPLER_ARG is "NaN"`},
		{"another sampler", []string{endpoint, "OTEL_TRACES_SAMPLER=jaeger_remote"}, "", "", `OTEL_TRACES_SAMPLER is "jaeger_remote"`},
		{"another protocol", []string{endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, "", "", `OTEL_EXPORTER_OTLP_PROTOCOL is "grpc"`},
		{"another exporter", []string{endpoint, "OTEL_TRACES_EXPORTER=zipkin"}, "", "", `OTEL_TRACES_EXPORTER is "zipkin"`},
		{"no URL", []string{"OTEL_EXPORTER_OTLP_ENDPOINT=user:secret@c"}, "", "", "OTEL_EXPORTER_OTLP_ENDPOINT is no URL"},
		{"no attributes", []string{endpoint, "OTEL_RESOURCE_ATTRIBUTES=a"}, "", "", `OTEL_RESOURCE_ATTRIBUTES is "a"`},
	} {
		getenv := func(name string) string {
			for _, e := range c.env {
				if value, found := strings.CutPrefix(e, name+"="); found {
					return value
				}
			}
			return ""
		}
		opts, on, err := traceSettings(getenv)
		if c.mistake != "" {
			if on || err == nil || !strings.HasPrefix(err.Error(), c.mistake) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v %v", c.name, on, err)
			}
			continue
		}
		if err != nil || on != (c.endpoint != "") || opts.Endpoint != c.endpoint {
			t.Errorf("%s: %v %+v %v", c.name, on, opts, err)
		}
		if on && !strings.HasPrefix(opts.Sampler.Description(), c.sampler) {
			t.Errorf("%s: %s", c.name, opts.Sampler.Description())
		}
	}
}

// The service's own name goes before that of the list, and percent signs are read.
func TestTraceResource(t *testing.T) {
	all, err := resource("service.name=x, a=1%2C2,,b=", "mine")
	if err != nil {
		t.Fatal(err)
	}
	last := map[string]string{}
	for _, a := range all {
		last[string(a.Key)] = a.Value.AsString()
	}
	if last["service.name"] != "mine" || last["a"] != "1,2" || last["service.version"] == "" || len(last) != 4 {
		t.Errorf("%v", last)
	}
	if all, err := resource("", ""); err != nil || all[0].Value.AsString() != "coordsvc" {
		t.Errorf("%v %v", all, err)
	}
}

// A wrong setting of traces refuses to start, and is told with the others.
func TestTraceSettingsAreChecked(t *testing.T) {
	env := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "c:4318", "COORD_HTTP_ADDR": "x"}
	err := run(t.Context(), []string{"serve"}, func(name string) string { return env[name] }, t.Output(), t.Output(), func(addresses) {})
	if err == nil || !strings.Contains(err.Error(), "OTEL_EXPORTER_OTLP_ENDPOINT") || !strings.Contains(err.Error(), "COORD_HTTP_ADDR") {
		t.Error(err)
	}
}

// Only a binary that was linked for tests can be without metrics, and takes no other value.
func TestMetricsAreSwitchedOffInTestsAlone(t *testing.T) {
	var c config
	if err := setMetrics(&c, "off"); err == nil {
		t.Error("a binary for production takes the setting")
	}
	testHooks = "1"
	defer func() { testHooks = "" }()
	if err := setMetrics(&c, "off"); err != nil || !c.unmeasured {
		t.Errorf("%v %v", c.unmeasured, err)
	}
	if err := setMetrics(&c, "on"); err == nil {
		t.Error("on is taken")
	}
	if err := setMetrics(&c, ""); err != nil || c.unmeasured {
		t.Errorf("%v %v", c.unmeasured, err)
	}
}
