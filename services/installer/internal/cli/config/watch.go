package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/meshclient"
)

var errNoWatch = errors.New("-w prints rows: leave out -o, or say wide or name")

// watchObjects is `config get -w`: it prints the objects, and then, until ctx ends, those that have changed since. One
// that is gone is printed again with "gone" for its place. It fails if the first look fails.
func (f getFlags) watchObjects(cmd *cobra.Command, mesh *meshclient.Mesh, a []string) error {
	ctx, out, diagnostics := cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	if f.out.WantsManifests() {
		return process.Usage(errNoWatch)
	}
	known := map[string]*configv1.Object{}
	said := ""
	for first := true; ctx.Err() == nil; first = false {
		objects, _, err := f.objects(ctx, mesh, a)
		if missing := new(configapi.NotFoundError); !first && errors.As(err, &missing) {
			objects, err = nil, nil // a named object is gone
		}
		switch {
		case err != nil && first && ctx.Err() == nil:
			return err
		case err == nil && first && len(objects) == 0:
			err = f.ReportEmpty(diagnostics, "objects")
		case err == nil:
			var changed []*configv1.Object
			changed, known = changes(known, objects)
			err = printRows(out, changed, f.out.Value, first)
		}
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			fmt.Fprintf(diagnostics, "%v; looking again\n", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return nil
}

// printRows prints objects as printObjects does, with the header only where one is wanted.
func printRows(out io.Writer, objects []*configv1.Object, as string, header bool) error {
	if len(objects) == 0 {
		return nil
	}
	if as == "name" {
		return printObjects(out, as, objects, false)
	}
	lines := rowsOf(objects, as).Lines()
	if !header {
		lines = lines[1:]
	}
	_, err := fmt.Fprintln(out, strings.Join(lines, "\n"))
	return err
}

// changes lists the objects that are new or others than before, and those that are gone, by their names, and returns
// all objects by name.
func changes(before map[string]*configv1.Object, objects []*configv1.Object) (changed []*configv1.Object, now map[string]*configv1.Object) {
	now = make(map[string]*configv1.Object, len(objects))
	for _, o := range objects {
		now[kinds.Text(o.GetKey())] = o
	}
	for _, key := range slices.Sorted(maps.Keys(now)) {
		o, old := now[key], before[key]
		if old == nil || old.GetSource() != o.GetSource() || locationOf(old) != locationOf(o) ||
			!bytes.Equal(old.GetManifest(), o.GetManifest()) {
			changed = append(changed, o)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if o := before[key]; now[key] == nil {
			o.Location, o.Overrides, o.StaysUntil = "gone", nil, nil
			changed = append(changed, o)
		}
	}
	return changed, now
}
