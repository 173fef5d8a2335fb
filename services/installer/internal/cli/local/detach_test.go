package local

import (
	"slices"
	"testing"

	"github.com/spf13/pflag"

	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
)

// A mesh that `up --detach` leaves running is started with every flag that was given.
func TestDetachHandsOverEveryFlag(t *testing.T) {
	f := upFlags{files: []string{"mesh.yaml"}, binDir: "bin", envoy: "envoy", trustDomain: "example.org"}
	list := f.args("run")
	newUp(command.Env{}, &meshflags.Flags{}).Flags().VisitAll(func(flag *pflag.Flag) {
		if name := "--" + flag.Name; flag.Name != "detach" && !slices.Contains(list, name) &&
			(flag.Shorthand == "" || !slices.Contains(list, "-"+flag.Shorthand)) {
			t.Errorf("%s is not handed over: %v", name, list)
		}
	})
}
