// Package authz has the commands that explain who may call whom.
package authz

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/authzview"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/fileflag"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/objectfile"
)

// Commands are the commands of this group.
func Commands(env command.Env, flags *meshflags.Flags) []*cobra.Command {
	return []*cobra.Command{command.Group("authz", "Explain AuthorizationPolicies: who may call whom, and why",
		newCheck(env, flags), newDiff(env, flags), newDryRun(env, flags), newCoverage(env, flags))}
}

// source says where the mesh is read from.
type source struct {
	env   command.Env
	flags *meshflags.Flags
	files []string
	// binDir is where config-watcher is, which judges the objects of files.
	binDir string
}

// add adds the flags that name a mesh: files, or one that runs.
func (s *source) add(cmd *cobra.Command) {
	fileflag.Add(cmd.Flags(), &s.files, "read the mesh from a file, a directory, or - for standard input, and ask no mesh that runs")
	s.addBinDir(cmd)
	s.addMesh(cmd)
}

func (s *source) addBinDir(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.binDir, "bin-dir", "", "directory of config-watcher, which judges files (default: that of fairlead)")
}

func (s *source) addMesh(cmd *cobra.Command) {
	s.flags.Add(cmd.Flags())
	s.flags.AddCluster(cmd)
}

// read reads the mesh.
func (s *source) read(cmd *cobra.Command) (*authzview.Mesh, error) {
	if len(s.files) == 0 {
		return authzview.FromMesh(cmd.Context(), s.flags.MeshOfOneRevision(cmd))
	}
	return authzview.Load(s.files, s.input(cmd))
}

func (s *source) input(cmd *cobra.Command) authzview.Input {
	return authzview.Input{
		Stdin: func() ([]byte, error) { return readUntil(cmd.Context(), s.env.In) },
		Refused: func(files []string, stdin []byte) (map[string]string, error) {
			program := s.env.Analysis(s.binDir)
			program.In = bytes.NewReader(stdin)
			return program.Refused(cmd.Context(), files)
		},
	}
}

// readUntil reads standard input to its end, or until ctx ends.
func readUntil(ctx context.Context, in io.Reader) ([]byte, error) {
	type read struct {
		content []byte
		err     error
	}
	done := make(chan read, 1)
	go func() {
		content, err := objectfile.Read("-", in)
		done <- read{content, err}
	}()
	select {
	case r := <-done:
		return r.content, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// completeNames completes the first places arguments as Services and proxies.
func (s *source) completeNames(places int, first ...string) complete.Func {
	return complete.Names(func(cmd *cobra.Command, a []string) []string {
		if len(a) >= places {
			return nil
		}
		names, _ := s.flags.CompleteServices(len(a))(cmd, a, "")
		names = append(names, s.flags.ProxyNames(cmd)...)
		if len(a) == 0 {
			names = append(names, first...)
		}
		return names
	})
}

// errNo is the error for a request that is denied; it makes the command exit with 1.
type errNo struct{ outcome string }

// Error implements error.
func (e errNo) Error() string { return fmt.Sprintf("the request is %s", e.outcome) }
