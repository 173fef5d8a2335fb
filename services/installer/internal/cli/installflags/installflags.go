// Package installflags has the flags that say what an installation consists of, in istioctl's names.
package installflags

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/version"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/fileflag"
	"fairlead.dev/services/installer/internal/cli/kubeflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/apply"
	"fairlead.dev/services/installer/internal/install/merge"
	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/meshrules"
	"fairlead.dev/services/installer/manifests"
)

// maxOperatorBytes bounds one file with an IstioOperator.
const maxOperatorBytes = 8 << 20

// Inputs are the flags that say what an installation consists of, in istioctl's names.
type Inputs struct {
	Files     []string
	Set       []string
	Manifests string
	Revision  string
	Force     bool
}

// Add adds the flags.
func (f *Inputs) Add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fileflag.Add(fs, &f.Files, "file with an IstioOperator, or - for standard input; later files are laid on earlier ones")
	fs.StringArrayVarP(&f.Set, "set", "s", nil, "a setting of the IstioOperator's spec, path=value, laid on the files; may be repeated")
	f.AddPackage(cmd)
	fs.StringVarP(&f.Revision, "revision", "r", "", "revision of the control plane, instead of the spec's")
	fs.BoolVar(&f.Force, "force", false, "go on in spite of what validation refuses; it is printed as warnings")
}

// Read reads the files and the install package.
func (f *Inputs) Read(in io.Reader) (install.Inputs, error) {
	out := install.Inputs{Inputs: merge.Inputs{Set: f.Set, Revision: f.Revision}, Force: f.Force}
	for _, name := range f.Files {
		text, err := ReadOperator(name, in)
		if err != nil {
			return out, process.Usage(err)
		}
		out.Files = append(out.Files, merge.File{Name: name, Text: text})
	}
	pkg, err := OpenPackage(f.Manifests)
	out.Package = pkg
	return out, err
}

// Judged is inputs with config-watcher's judgement of the mesh configuration.
func (f *Inputs) Judged(env command.Env) (install.Inputs, error) {
	in, err := f.Read(env.In)
	if err != nil {
		return in, err
	}
	in.JudgeMesh = meshrules.By(env.Programs(""), in.Package)
	return in, nil
}

// ReadOperator reads a file with an IstioOperator, or standard input.
func ReadOperator(name string, in io.Reader) ([]byte, error) {
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

// OpenPackage opens the install package in a directory; without one, that of Fairlead.
func OpenPackage(dir string) (*profile.Package, error) {
	if dir == "" {
		return profile.Open(manifests.FS)
	}
	pkg, err := profile.OpenDir(dir)
	if err != nil {
		return nil, process.Usagef("--manifests %s: %w", dir, err)
	}
	return pkg, nil
}

// AddPackage adds the flag of the install package alone.
func (f *Inputs) AddPackage(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.Manifests, "manifests", "d", "",
		"install package, instead of Fairlead's own: a directory with charts and profiles, such as manifests/ of an Istio release")
	_ = cmd.MarkFlagDirname("manifests")
}

// Request makes the objects of an installation in a cluster, whose namespace counts if its flag was given. Gateways
// alone, of an IstioOperator with a name, have what the control plane of their revision has in common with them, as if
// its injector had made their Pods: that is read from the cluster.
func (f *Inputs) Request(cmd *cobra.Command, env command.Env, at *kubeflags.Cluster) (*apply.Request, error) {
	in, err := f.Judged(env)
	if err != nil {
		return nil, err
	}
	if cmd.Flags().Changed("istioNamespace") {
		in.Set = append([]string{"values.global.istioNamespace=" + at.IstioNamespace}, in.Set...)
	}
	result, err := install.Generate(in)
	if err != nil {
		return nil, process.Refused(err)
	}
	req, err := apply.NewRequest(result, in.Package, version.Info().Version)
	if err != nil || req.Name == "" {
		output.Warn(cmd.ErrOrStderr(), result.Warnings)
		return req, err
	}
	c, err := at.Connect()
	if err != nil {
		return nil, err
	}
	common, err := apply.InCommon(cmd.Context(), c, req)
	if err != nil {
		return nil, err
	}
	if common != nil {
		in.Files = append([]merge.File{{Name: "the control plane of revision " + req.Revision, Text: common}}, in.Files...)
	}
	return Generate(cmd, in)
}

// Generate makes the objects of an installation, and prints warnings.
func Generate(cmd *cobra.Command, in install.Inputs) (*apply.Request, error) {
	result, err := install.Generate(in)
	if err != nil {
		return nil, process.Refused(err)
	}
	output.Warn(cmd.ErrOrStderr(), result.Warnings)
	return apply.NewRequest(result, in.Package, version.Info().Version)
}
