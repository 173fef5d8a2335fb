package version

import (
	"runtime/debug"
	"testing"
)

func TestFromBuildInfo(t *testing.T) {
	info := &debug.BuildInfo{
		GoVersion: "go1.26.0",
		Path:      "fairlead.dev/services/xds-server/cmd/xds-server",
		Settings:  []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}},
	}
	want := Build{Service: "xds-server", Version: "dev", Revision: "abc-dirty", Go: "go1.26.0"}
	if got := fromBuildInfo(info); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := want.String(); got != "xds-server dev (abc-dirty) go1.26.0" {
		t.Errorf("String is %q", got)
	}
	info.Settings = []debug.BuildSetting{{Key: "vcs.modified", Value: "true"}}
	if got := fromBuildInfo(info); got.Revision != "" {
		t.Errorf("revision is %q without version control", got.Revision)
	}
}

func TestInfoIsOfThisProgram(t *testing.T) {
	if got := Info(); got.Go == "" || got.Version == "" {
		t.Errorf("incomplete: %+v", got)
	}
}

func TestAServiceHasItsOwnVersion(t *testing.T) {
	const services = "ca=v1.2.0,node-agent=v2.0.1-3-gabc"
	for main, want := range map[string]string{
		"fairlead.dev/services/ca/cmd/ca":                   "v1.2.0",
		"fairlead.dev/services/node-agent/cmd/fairlead-cni": "v2.0.1-3-gabc",
		"fairlead.dev/services/xds-server/cmd/xds-server":   "dev",
		"fairlead.dev/samples/bookinfo":                     "dev",
	} {
		if got := own(services, main, "dev"); got != want {
			t.Errorf("%s has version %s, want %s", main, got, want)
		}
	}
}
