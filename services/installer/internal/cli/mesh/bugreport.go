package mesh

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/process"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/bugreport"
	"fairlead.dev/services/installer/internal/bugreport/gather"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/objectfile"
)

// systemNamespaces are left out of a report unless --exclude says otherwise, as in istioctl.
var systemNamespaces = strings.Join(slices.Sorted(slices.Values(contract.SystemNamespaces)), ",")

// reportFlags are the flags of `fairlead bug-report`. The fields with names in JSON may come from --filename.
type reportFlags struct {
	Include        []string `json:"include"`
	Exclude        []string `json:"exclude"`
	Duration       string   `json:"duration"`
	StartTime      string   `json:"startTime"`
	EndTime        string   `json:"endTime"`
	Timeout        string   `json:"timeout"`
	Context        string   `json:"context"`
	KubeConfigPath string   `json:"kubeConfigPath"`
	IstioNamespace string   `json:"istioNamespace"`
	Dir            string   `json:"dir"`

	file    string
	secrets bool
	binDir  string

	// report is what the flags say.
	report gather.Config
}

func newBugReport(env command.Env, flags *meshflags.Flags) *cobra.Command {
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "bug-report",
		Short: "Gather versions, configuration, status, logs and dumps of a mesh in one archive, without secrets",
		Long: `Gather in one .tar.gz what is known of a mesh: versions; IstioOperators, installations, mesh configuration and Istio's objects; the status of objects and
proxies, and the findings of analyze; logs, debug pages and metrics of the control plane; logs and dumps of the proxies that --include and --exclude
choose. missing.txt in it says what could not be read, and why.

Private keys, tokens, Authorization headers, passwords in environments and the data of Secrets are replaced by [redacted], base64 of them too. Look
through the archive before you pass it on all the same: what applications log is theirs.

--include and --exclude are istioctl's: NAMESPACE,.../DEPLOYMENT,.../POD,.../LABEL=VALUE,.../ANNOTATION=VALUE,.../CONTAINER,..., of which the later
parts may be left out; * stands for any text. Without --include all Pods with a proxy are taken. --filename names a file of YAML with include, exclude,
duration, startTime, endTime, timeout, context, kubeConfigPath, istioNamespace and dir; flags go before it.

An archive has at most 512 MiB before compression, and 16 MiB of one file. Exit code 0 also if something is missing; 1 if no archive could be written.`,
		Example: `  fairlead bug-report
  fairlead bug-report --include "shop/reviews*" --duration 30m
  fairlead bug-report --start-time 2026-03-01T10:00:00Z --end-time 2026-03-01T11:00:00Z --dir /tmp`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.complete(cmd, time.Now()); err != nil {
				return err
			}
			f.report.Mesh, f.report.Dir = flags.Mesh(cmd), f.Dir
			f.report.Programs, f.report.Analysis = env.Programs(f.binDir), env.Analysis(f.binDir)
			f.report.Progress = func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), text) }
			archive, err := gather.Report(cmd.Context(), f.report)
			if err != nil {
				return err
			}
			if archive.Gaps > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%d things could not be read; missing.txt in the archive says which, and why\n", archive.Gaps)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s (%.1f MB)\n", archive.Path, float64(archive.Size)/1e6)
			return err
		},
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&f.Include, "include", nil, "Pods to take; may be repeated")
	fs.StringArrayVar(&f.Exclude, "exclude", []string{systemNamespaces}, "Pods to leave out; may be repeated")
	fs.StringVar(&f.Duration, "duration", "", "only log lines of this time before --end-time, as 30m (default: all)")
	fs.StringVar(&f.StartTime, "start-time", "", "only log lines from this time on, as 2026-03-01T10:00:00Z")
	fs.StringVar(&f.EndTime, "end-time", "", "only log lines up to this time (default: now)")
	fs.StringVar(&f.Timeout, "timeout", "30m", "how long gathering may take; what is not read by then is missing")
	fs.StringVar(&f.Dir, "dir", ".", "directory for the archive, fairlead-bug-report-TIME.tar.gz")
	fs.StringVarP(&f.file, "filename", "f", "", "file of YAML with settings")
	fs.BoolVar(&f.secrets, "full-secrets", false, "istioctl's flag; a report never has secrets, so true is refused")
	fs.StringVar(&f.binDir, "bin-dir", "", "directory of the programs (default: that of fairlead)")
	flags.AddServers(fs)
	flags.AddCluster(cmd)
	_ = cmd.MarkFlagDirname("dir")
	return cmd
}

// complete takes what the file says where there is no flag, and parses times and selections.
func (f *reportFlags) complete(cmd *cobra.Command, now time.Time) error {
	if f.secrets {
		return process.Usage(errors.New("--full-secrets: a report never has secrets; leave it out"))
	}
	if f.file != "" {
		text, err := objectfile.ReadAnyFile(f.file)
		if err != nil {
			return process.Usage(err)
		}
		set := *f
		if err := yaml.UnmarshalStrict(text, &set); err != nil {
			return process.Refusedf("%s: %w; fields are those of `fairlead bug-report --help`", f.file, err)
		}
		fs := cmd.Flags()
		for flag, field := range map[string]func(){
			"include": func() { f.Include = set.Include }, "exclude": func() { f.Exclude = set.Exclude },
			"duration":   func() { f.Duration = set.Duration },
			"start-time": func() { f.StartTime = set.StartTime }, "end-time": func() { f.EndTime = set.EndTime },
			"timeout": func() { f.Timeout = set.Timeout },
			"dir":     func() { f.Dir = set.Dir },
		} {
			if !fs.Changed(flag) {
				field()
			}
		}
		for flag, value := range map[string]string{"context": set.Context, "kubeconfig": set.KubeConfigPath,
			"istioNamespace": set.IstioNamespace} {
			if value != "" && !fs.Changed(flag) {
				if err := fs.Set(flag, value); err != nil {
					return process.Usage(err)
				}
			}
		}
	}
	for _, p := range []struct {
		flag, text string
		into       *time.Time
	}{{"start-time", f.StartTime, &f.report.Since}, {"end-time", f.EndTime, &f.report.Until}} {
		if p.text == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339, p.text)
		if err != nil {
			return process.Usagef("--%s %q is no time; write it as 2026-03-01T10:00:00Z", p.flag, p.text)
		}
		*p.into = at
	}
	if f.Duration != "" {
		d, err := time.ParseDuration(f.Duration)
		end := f.report.Until
		if end.IsZero() {
			end = now
		}
		switch {
		case err != nil || d <= 0:
			return process.Usagef("--duration %q is no time; write it as 30m", f.Duration)
		case !f.report.Since.IsZero():
			return process.Usage(errors.New("--duration and --start-time exclude each other"))
		}
		f.report.Since = end.Add(-d)
	}
	if !f.report.Since.IsZero() && !f.report.Until.IsZero() && !f.report.Since.Before(f.report.Until) {
		return process.Usagef("--end-time %s is not after %s", f.report.Until.Format(time.RFC3339), f.report.Since.Format(time.RFC3339))
	}
	var err error
	if f.report.Timeout, err = time.ParseDuration(f.Timeout); err != nil || f.report.Timeout <= 0 {
		return process.Usagef("--timeout %q is no time; write it as 5m", f.Timeout)
	}
	if f.report.Selection, err = bugreport.ParseSelection(f.Include, f.Exclude); err != nil {
		return process.Usage(err)
	}
	return nil
}
