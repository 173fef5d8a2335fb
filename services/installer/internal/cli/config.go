package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/objectfile"
)

func newConfig(env Env, t *target) *cobra.Command {
	cmd := group("config", "Read and write the mesh's objects", newApply(env, t), newGet(t), newConfigStatus(t), newEdit(env, t),
		newDelete(env, t),
		newWhoAmI(t), newCanI(t), newBan(t), newUnban(t), newBans(t), newAudit(t))
	t.register(cmd.PersistentFlags())
	return cmd
}

// callTimeout bounds the calls to config-watcher of one command.
const callTimeout = 15 * time.Second

// documents reads the files and directories that -f names; "-" is standard input. A file without an object is refused,
// and passed over with a warning where -f names a directory that has it.
func documents(env Env, files []string) ([]*configv1.Document, error) {
	if len(files) == 0 {
		return nil, usage(errors.New("name a file with -f; - is standard input"))
	}
	var docs []*configv1.Document
	for _, name := range files {
		if name == "-" {
			content, err := objectfile.Read("standard input", env.In)
			if err != nil {
				return nil, err
			}
			if objectfile.Blank(content) {
				return nil, refused(errors.New("standard input holds no object"))
			}
			docs = append(docs, &configv1.Document{Name: "stdin", Content: content})
			continue
		}
		paths, err := objectfile.List([]string{name})
		if err != nil {
			return nil, usage(err)
		}
		for _, path := range paths {
			content, err := readFileOrPipe(path)
			if err != nil {
				return nil, err
			}
			switch {
			case !objectfile.Blank(content):
				docs = append(docs, &configv1.Document{Name: path, Content: content})
			case path == name:
				return nil, holdsNone(path)
			default:
				fmt.Fprintf(env.Err, "warning: %s: holds no object\n", path)
			}
		}
	}
	if len(docs) == 0 {
		return nil, refused(fmt.Errorf("%s: no file in it holds an object", strings.Join(files, ", ")))
	}
	return docs, nil
}

// holdsNone is the error about a file without an object.
func holdsNone(path string) error {
	return refused(fmt.Errorf("%s: holds no object; write one, or do not name it", path))
}

// readFileOrPipe reads a file, or a pipe that a shell has opened, as in -f <(helm template .).
func readFileOrPipe(path string) ([]byte, error) {
	if info, err := os.Stat(path); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return objectfile.ReadFile(path)
	}
	return readAnyFile(path)
}

// readAnyFile reads a file of any kind, pipes included, up to objectfile.MaxFileBytes.
func readAnyFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return objectfile.Read(path, f)
}

// storeSource is config-watcher's name for the source that keeps what `config apply` writes.
const storeSource = "memory"

// fullName is "<namespace>/<name>", or the name alone for an object without a namespace.
func fullName(namespace, name string) string { return strings.TrimPrefix(namespace+"/"+name, "/") }

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

// withExitCode adds the exit code for refused input to an error of config-watcher that says so.
func withExitCode(err error) error {
	if _, ok := errors.AsType[*configapi.RefusedError](err); ok {
		return refused(err)
	}
	return err
}
