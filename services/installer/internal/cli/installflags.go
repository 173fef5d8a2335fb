package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/merge"
	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/meshrules"
	"fairlead.dev/services/installer/manifests"
)

// maxOperatorBytes bounds one file with an IstioOperator.
const maxOperatorBytes = 8 << 20

// installFlags are the flags that say what an installation consists of, in istioctl's names.
type installFlags struct {
	files     []string
	set       []string
	manifests string
	revision  string
	force     bool
}

func (f *installFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	filesFlag(fs, &f.files, "file with an IstioOperator, or - for standard input; later files are laid on earlier ones")
	fs.StringArrayVarP(&f.set, "set", "s", nil, "a setting of the IstioOperator's spec, path=value, laid on the files; may be repeated")
	f.addPackage(cmd)
	fs.StringVarP(&f.revision, "revision", "r", "", "revision of the control plane, instead of the spec's")
	fs.BoolVar(&f.force, "force", false, "go on in spite of what validation refuses; it is printed as warnings")
}

// inputs reads the files and the install package.
func (f *installFlags) inputs(in io.Reader) (install.Inputs, error) {
	out := install.Inputs{Inputs: merge.Inputs{Set: f.set, Revision: f.revision}, Force: f.force}
	for _, name := range f.files {
		text, err := readOperator(name, in)
		if err != nil {
			return out, process.Usage(err)
		}
		out.Files = append(out.Files, merge.File{Name: name, Text: text})
	}
	pkg, err := openPackage(f.manifests)
	out.Package = pkg
	return out, err
}

// judged is inputs with config-watcher's judgement of the mesh configuration.
func (f *installFlags) judged(env Env) (install.Inputs, error) {
	in, err := f.inputs(env.In)
	if err != nil {
		return in, err
	}
	in.JudgeMesh = meshrules.By(env.programs(""), in.Package)
	return in, nil
}

func readOperator(name string, in io.Reader) ([]byte, error) {
	if name != "-" {
		file, err := os.Open(filepath.Clean(name))
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, maxOperatorBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(text) > maxOperatorBytes {
		return nil, fmt.Errorf("%s is longer than %d bytes", name, maxOperatorBytes)
	}
	return text, nil
}

// openPackage opens the install package in a directory; without one, that of Fairlead.
func openPackage(dir string) (*profile.Package, error) {
	if dir == "" {
		return profile.Open(manifests.FS)
	}
	pkg, err := profile.OpenDir(dir)
	if err != nil {
		return nil, process.Usage(fmt.Errorf("--manifests %s: %w", dir, err))
	}
	return pkg, nil
}

// warn prints warnings.
func warn(w io.Writer, warnings []string) {
	for _, text := range warnings {
		fmt.Fprintln(w, "warning:", strings.ReplaceAll(text, "\n", " "))
	}
}

// addPackage adds the flag of the install package alone.
func (f *installFlags) addPackage(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.manifests, "manifests", "d", "",
		"install package, instead of Fairlead's own: a directory with charts and profiles, such as manifests/ of an Istio release")
	_ = cmd.MarkFlagDirname("manifests")
}
