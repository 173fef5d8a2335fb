package install

import (
	"bytes"
	"fmt"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/installflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/merge"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/structured"
)

func newProfile(env command.Env) *cobra.Command {
	return command.Group("profile", "List, print and compare the profiles of an install package", newProfileList(), newProfileDump(env),
		newProfileDiff())
}

func newProfileList() *cobra.Command {
	var f installflags.Inputs
	out := output.New("json", "yaml")
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the profiles",
		Args:  command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			pkg, err := installflags.OpenPackage(f.Manifests)
			if err != nil {
				return err
			}
			names, err := pkg.Names()
			if err != nil {
				return err
			}
			if out.Value != "" {
				return structured.Print(cmd.OutOrStdout(), out.Value, names)
			}
			for _, name := range names {
				fmt.Fprintln(cmd.OutOrStdout(), name)
			}
			return nil
		},
	}
	f.AddPackage(cmd)
	output.Flag(cmd, out)
	return cmd
}

func newProfileDump(env command.Env) *cobra.Command {
	var f installflags.Inputs
	var path string
	out := output.New("yaml", "json")
	cmd := &cobra.Command{
		Use:   "dump [PROFILE]",
		Short: "Print a profile as an IstioOperator, laid on the default profile",
		Long:  `Print a profile as an IstioOperator, laid on the default profile, with the files and settings laid on it.`,
		Example: `  fairlead profile dump demo
  fairlead profile dump --config-path values.global`,
		Args: command.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			in, err := f.Read(env.In)
			if err != nil {
				return err
			}
			if len(a) == 1 {
				in.Profile = a[0]
			}
			merged, err := install.Spec(in)
			if err != nil {
				return process.Refused(err)
			}
			output.Warn(cmd.ErrOrStderr(), merged.Warnings)
			var v any = merge.Operator(merged.Spec)
			if path != "" {
				p, err := tree.ParsePath(path)
				if err != nil {
					return process.Usagef("--config-path: %w", err)
				}
				if v, err = tree.Select(merged.Spec, p); err != nil {
					return fmt.Errorf("--config-path %s: %w", path, err)
				}
			}
			as := out.Value
			if as == "" {
				as = "yaml"
			}
			return structured.Print(cmd.OutOrStdout(), as, v)
		},
	}
	f.Add(cmd)
	cmd.ValidArgsFunction = completeProfiles(&f, 1)
	cmd.Flags().StringVarP(&path, "config-path", "p", "", "path of the field to print, instead of all")
	output.Flag(cmd, out)
	return cmd
}

// completeProfiles completes the first count arguments by the profiles of the install package.
func completeProfiles(f *installflags.Inputs, count int) complete.Func {
	return complete.Names(func(_ *cobra.Command, a []string) []string {
		pkg, err := installflags.OpenPackage(f.Manifests)
		if err != nil || len(a) >= count {
			return nil
		}
		names, err := pkg.Names()
		if err != nil {
			return nil
		}
		return names
	})
}

func newProfileDiff() *cobra.Command {
	var f installflags.Inputs
	cmd := &cobra.Command{
		Use:     "diff PROFILE PROFILE",
		Short:   "Print what differs between two profiles",
		Long:    `Print the fields that differ between two profiles, each laid on the default one: - for the first, + for the second. Nothing is printed if none does.`,
		Example: `  fairlead profile diff default demo`,
		Args:    command.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			pkg, err := installflags.OpenPackage(f.Manifests)
			if err != nil {
				return err
			}
			var specs [2]tree.Map
			for i, name := range a {
				merged, err := install.Spec(install.Inputs{Inputs: merge.Inputs{Profile: name}, Package: pkg})
				if err != nil {
					return process.Refused(err)
				}
				specs[i] = merged.Spec
			}
			var text bytes.Buffer
			for _, line := range tree.Diff(specs[0], specs[1]) {
				fmt.Fprintln(&text, line)
			}
			_, err = cmd.OutOrStdout().Write(text.Bytes())
			return err
		},
	}
	f.AddPackage(cmd)
	cmd.ValidArgsFunction = completeProfiles(&f, 2)
	return cmd
}
