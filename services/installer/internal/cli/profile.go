package cli

import (
	"bytes"
	"fmt"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/merge"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/structured"
)

func newProfile(env Env) *cobra.Command {
	return group("profile", "List, print and compare the profiles of an install package", newProfileList(), newProfileDump(env),
		newProfileDiff())
}

func newProfileList() *cobra.Command {
	var f installFlags
	out := newFormat("json", "yaml")
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the profiles",
		Args:  args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			pkg, err := openPackage(f.manifests)
			if err != nil {
				return err
			}
			names, err := pkg.Names()
			if err != nil {
				return err
			}
			if out.value != "" {
				return structured.Print(cmd.OutOrStdout(), out.value, names)
			}
			for _, name := range names {
				fmt.Fprintln(cmd.OutOrStdout(), name)
			}
			return nil
		},
	}
	f.addPackage(cmd)
	outputFlag(cmd, out)
	return cmd
}

func newProfileDump(env Env) *cobra.Command {
	var f installFlags
	var path string
	out := newFormat("yaml", "json")
	cmd := &cobra.Command{
		Use:   "dump [PROFILE]",
		Short: "Print a profile as an IstioOperator, laid on the default profile",
		Long:  `Print a profile as an IstioOperator, laid on the default profile, with the files and settings laid on it.`,
		Example: `  fairlead profile dump demo
  fairlead profile dump --config-path values.global`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			in, err := f.inputs(env.In)
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
			warn(cmd.ErrOrStderr(), merged.Warnings)
			var v any = merge.Operator(merged.Spec)
			if path != "" {
				p, err := tree.ParsePath(path)
				if err != nil {
					return process.Usage(fmt.Errorf("--config-path: %w", err))
				}
				if v, err = tree.Select(merged.Spec, p); err != nil {
					return fmt.Errorf("--config-path %s: %w", path, err)
				}
			}
			as := out.value
			if as == "" {
				as = "yaml"
			}
			return structured.Print(cmd.OutOrStdout(), as, v)
		},
	}
	f.add(cmd)
	cmd.ValidArgsFunction = f.completeProfiles(1)
	cmd.Flags().StringVarP(&path, "config-path", "p", "", "path of the field to print, instead of all")
	outputFlag(cmd, out)
	return cmd
}

// completeProfiles completes the first count arguments by the profiles of the install package.
func (f *installFlags) completeProfiles(count int) completion {
	return func(_ *cobra.Command, a []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(a) >= count {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		pkg, err := openPackage(f.manifests)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names, err := pkg.Names()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return withPrefix(names, begun), cobra.ShellCompDirectiveNoFileComp
	}
}

func newProfileDiff() *cobra.Command {
	var f installFlags
	cmd := &cobra.Command{
		Use:     "diff PROFILE PROFILE",
		Short:   "Print what differs between two profiles",
		Long:    `Print the fields that differ between two profiles, each laid on the default one: - for the first, + for the second. Nothing is printed if none does.`,
		Example: `  fairlead profile diff default demo`,
		Args:    args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			pkg, err := openPackage(f.manifests)
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
	f.addPackage(cmd)
	cmd.ValidArgsFunction = f.completeProfiles(2)
	return cmd
}
