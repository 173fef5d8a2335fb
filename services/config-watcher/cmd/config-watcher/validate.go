package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/services/config-watcher/internal/offline"
)

// newValidate is `config-watcher validate`, which `fairlead validate` runs.
func newValidate() *cobra.Command {
	var output string
	var strict, defaults bool
	cmd := &cobra.Command{
		Use:   "validate [-o text|json [--defaults]] [--strict] FILE|DIR|-...",
		Short: "Judge files of objects without a mesh",
		Long: "validate decodes and validates the objects of files as config-watcher does when it follows them, and prints what it says of\n" +
			"each. A bare mesh configuration, as --mesh-config-file takes it, is judged as well. - is the standard input.\n\n" +
			"Exit codes: 0 everything is accepted, 2 wrong usage or a path that cannot be read, 3 something is refused.",
		Args: service.Args(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, paths []string) error {
			return validate(cmd, output, strict, defaults, paths)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "output format: text or json")
	cmd.Flags().BoolVar(&defaults, "defaults", false, "with -o json, add the spec of each accepted object of the Gateway API with its "+
		"defaults")
	cmd.Flags().BoolVar(&strict, "strict", false, "refuse objects with warnings too")
	return cmd
}

func validate(cmd *cobra.Command, output string, strict, defaults bool, paths []string) error {
	switch {
	case len(paths) == 0:
		return process.WithExitCode(errors.New("name files or directories of objects; - is the standard input"), process.ExitUsage)
	case output != "text" && output != "json":
		return process.WithExitCode(fmt.Errorf("--output %q is none of text, json", output), process.ExitUsage)
	case defaults && output != "json":
		return process.WithExitCode(errors.New("--defaults needs -o json"), process.ExitUsage)
	}
	var summary offline.Summary
	out := bufio.NewWriter(cmd.OutOrStdout())
	verdicts := []offline.Verdict{}
	err := offline.Validate(paths, cmd.InOrStdin(), defaults, func(v offline.Verdict) {
		summary.Add(v)
		if output == "json" {
			verdicts = append(verdicts, v)
			return
		}
		printVerdict(out, v)
	})
	if err != nil {
		return process.WithExitCode(err, process.ExitUsage)
	}
	if output == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(struct {
			Objects []offline.Verdict `json:"objects"`
			Summary offline.Summary   `json:"summary"`
		}{verdicts, summary})
	} else {
		_, err = fmt.Fprintln(out, summary)
	}
	if err := errors.Join(err, out.Flush()); err != nil {
		return err
	}
	switch {
	case summary.Refused > 0:
		return process.WithExitCode(fmt.Errorf("refused: %d of %d", summary.Refused, summary.Objects), process.ExitRefused)
	case strict && summary.Warned > 0:
		return process.WithExitCode(fmt.Errorf("warnings: %d of %d, and --strict refuses those", summary.Warned, summary.Objects),
			process.ExitRefused)
	}
	return nil
}

// printVerdict prints a line for each finding: "mesh.yaml:12: VirtualService apps/server: spec.http[0]: ...".
func printVerdict(out io.Writer, v offline.Verdict) {
	line := func(f offline.Finding, prefix string) {
		fmt.Fprintf(out, "%s:%d: ", v.File, f.Line)
		for _, part := range []string{v.Object(), f.Field} {
			if part != "" {
				fmt.Fprintf(out, "%s: ", part)
			}
		}
		fmt.Fprintf(out, "%s%s\n", prefix, f.Message)
	}
	for _, f := range v.Errors {
		line(f, "")
	}
	for _, f := range v.Warnings {
		line(f, "warning: ")
	}
}
