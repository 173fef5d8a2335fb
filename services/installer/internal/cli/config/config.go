package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/fileflag"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/objectfile"
)

func newConfig(env command.Env, flags *meshflags.Flags) *cobra.Command {
	cmd := command.Group("config", "Read and write the mesh's objects",
		newApply(env, flags), newGet(flags), newConfigStatus(flags), newEdit(env, flags), newDelete(env, flags),
		newWhoAmI(flags), newCanI(flags), newBan(flags), newUnban(flags), newBans(flags), newAudit(flags))
	flags.Add(cmd.PersistentFlags())
	return cmd
}

// documents reads the files and directories that -f names; "-" is standard input. A file without an object is refused,
// and passed over with a warning where -f names a directory that has it.
func documents(env command.Env, files []string) ([]*configv1.Document, error) {
	if len(files) == 0 {
		return nil, process.Usage(errors.New("name a file with -f; - is standard input"))
	}
	var docs []*configv1.Document
	for _, name := range files {
		if name == "-" {
			content, err := objectfile.Read("standard input", env.In)
			if err != nil {
				return nil, err
			}
			if objectfile.Blank(content) {
				return nil, process.Refused(errors.New("standard input holds no object"))
			}
			docs = append(docs, &configv1.Document{Name: "stdin", Content: content})
			continue
		}
		paths, err := objectfile.List([]string{name})
		if err != nil {
			return nil, process.Usage(err)
		}
		for _, path := range paths {
			content, err := objectfile.ReadFileOrPipe(path)
			if err != nil {
				return nil, err
			}
			switch {
			case !objectfile.Blank(content):
				docs = append(docs, &configv1.Document{Name: path, Content: content})
			case path == name:
				return nil, fileflag.HoldsNone(path)
			default:
				fmt.Fprintf(env.Err, "warning: %s: holds no object\n", path)
			}
		}
	}
	if len(docs) == 0 {
		return nil, process.Refusedf("%s: no file in it holds an object", strings.Join(files, ", "))
	}
	return docs, nil
}

// storeSource is config-watcher's name for the source that keeps what `config apply` writes.
const storeSource = "memory"

// placeName names the place where an object is written, for a sentence: file and line, "the store" or the source.
func placeName(p *configv1.Place) string {
	switch {
	case p.GetLocation() != "":
		return p.GetLocation()
	case p.GetSource() == storeSource:
		return "the store"
	}
	return p.GetSource()
}

// run is what a command does with a client of config-watcher and its arguments.
type run = func(ctx context.Context, client *configapi.Client, a []string, out io.Writer) error

// withClient returns the RunE of a command that only calls config-watcher: see meshclient.Mesh.Call.
func withClient(flags *meshflags.Flags, do run) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, a []string) error {
		return flags.MeshOfOneRevision(cmd).Call(cmd.Context(), func(ctx context.Context, client *configapi.Client) error {
			return do(ctx, client, a, cmd.OutOrStdout())
		})
	}
}
