// Package version tells which build a program is: Info reads it from the binary. `--version`, /debug/version and a
// metric show it.
package version

import (
	"path"
	"runtime/debug"
	"strings"
)

// Version is the release, set by the linker: -ldflags "-X fairlead.dev/pkg/version.Version=1.2.3".
// A service with a version of its own has that instead.
var Version = "dev"

// services has the versions of services with one of their own, set by the linker (hack/ldflags.sh):
// "ca=v1.2.0,xds-server=v1.3.0".
var services string

func init() {
	if info, ok := debug.ReadBuildInfo(); ok {
		Version = own(services, info.Path, Version)
	}
}

// own is the version of the service that a main package belongs to, as fairlead.dev/services/ca/cmd/ca; otherwise if it
// has none of its own.
func own(services, main, otherwise string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(main, "fairlead.dev/services/"), "/")
	for entry := range strings.SplitSeq(services, ",") {
		if service, version, ok := strings.Cut(entry, "="); ok && service == name {
			return version
		}
	}
	return otherwise
}

// Build describes a running program. Its JSON form is part of the debug and CLI interfaces.
type Build struct {
	// Service is the program's name: the last element of the main package's path.
	Service string `json:"service"`
	Version string `json:"version"`
	// Revision is the commit, with "-dirty" if the tree had changes; empty if built without version control.
	Revision string `json:"revision,omitempty"`
	// Go is the toolchain, such as "go1.26.0".
	Go string `json:"go"`
}

// Info returns the running program's build.
func Info() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Build{Version: Version}
	}
	return fromBuildInfo(info)
}

func fromBuildInfo(info *debug.BuildInfo) Build {
	b := Build{Version: Version, Go: info.GoVersion}
	if info.Path != "" {
		b.Service = path.Base(info.Path)
	}
	dirty := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if dirty && b.Revision != "" {
		b.Revision += "-dirty"
	}
	return b
}

// String is one line for people.
func (b Build) String() string {
	s := b.Service + " " + b.Version
	if b.Revision != "" {
		s += " (" + b.Revision + ")"
	}
	return s + " " + b.Go
}
