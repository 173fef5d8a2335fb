// Package version tells which build a program is: Info reads it from the binary. `--version`, /debug/version and a
// metric show it.
package version

import (
	"path"
	"runtime/debug"
)

// Version is the release, set by the linker: -ldflags "-X fairlead.dev/pkg/version.Version=1.2.3".
var Version = "dev"

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
