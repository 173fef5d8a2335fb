package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/waiting"
)

// waitFlags are the flags of `fairlead wait`.
type waitFlags struct {
	waiting.Request
	namespace string
	verbose   bool
	out       *output.Format
}

func newWait(flags *meshflags.Flags) *cobra.Command {
	f := waitFlags{out: output.New("json", "yaml")}
	cmd := &cobra.Command{
		Use:   "wait KIND/NAME[.NAMESPACE] | KIND NAME[.NAMESPACE]",
		Short: "Wait until the proxies have acknowledged an object",
		Long: `Wait until the proxies have acknowledged an object of Istio's kinds or of the Gateway API in its newest generation, or in that
of --generation. A Gateway, ListenerSet or route of the Gateway API that nothing serves yet is waited for; its status says what it lacks.

  --for programmed   its condition Programmed holds: every proxy has acknowledged it. A proxy that rejects it ends the wait
  --for delivery     the share --threshold of the connected proxies has acknowledged it; istioctl calls it distribution
  --for deleted      it is not in force any more, and the share --threshold of the proxies has acknowledged that

Objects of files have no generation; the version in force counts. Proxies whose identity the mesh does not know do not count.

Exit code 0 when it has come true; 1 after --timeout, with the proxies that are missing, or if the object is refused, overridden or rejected.`,
		Example: `  fairlead wait virtualservice/reviews.default
  fairlead wait vs/reviews -n default --for delivery --threshold 0.9
  fairlead wait dr/reviews --for deleted --timeout 1m -v
  fairlead wait httproute/cart.shop
  fairlead wait gtw/edge -n infra`,
		Args:              command.Args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: flags.CompleteObjects,
		RunE: func(cmd *cobra.Command, a []string) error {
			return f.run(cmd, flags.Mesh(cmd), a)
		},
	}
	fs := cmd.Flags()
	flags.AddNamespace(cmd, &f.namespace, "namespace of the object, if NAME does not say (default \"default\")")
	fs.StringVar(&f.For, "for", waiting.Programmed, "what to wait for: programmed, delivery or deleted")
	fs.Int64Var(&f.Generation, "generation", 0, "generation of the object (default: the newest)")
	fs.Float64Var(&f.Threshold, "threshold", 1, "share of the proxies that is enough, 0 to 1; for programmed it is all of them")
	fs.DurationVar(&f.Timeout, "timeout", 30*time.Second, "how long to wait")
	fs.BoolVarP(&f.verbose, "verbose", "v", false, "say on standard error how far it is")
	output.Flag(cmd, f.out)
	flags.Add(fs)
	flags.AddCluster(cmd)
	complete.Flag(cmd, "for", waiting.Programmed, waiting.Delivery, waiting.Deleted)
	return cmd
}

func (f *waitFlags) run(cmd *cobra.Command, mesh *meshclient.Mesh, a []string) error {
	kind, name, err := kinds.ParseObject(a)
	if err != nil {
		return err
	}
	condition, ok := waiting.Conditions[strings.ToLower(f.For)]
	switch {
	case name == "":
		return process.Usagef("%q names no object: write KIND/NAME or KIND/NAME.NAMESPACE", strings.Join(a, " "))
	case !ok:
		all := []string{waiting.Programmed, waiting.Delivery, waiting.Deleted}
		return process.Usagef("--for %q is none of %s%s", f.For, strings.Join(all, ", "), nearest.Hint(f.For, all))
	case waiting.GroupOf(kind) == "":
		return process.Usagef("%s has no conditions, which only objects of Istio's kinds and of the Gateway API have; `fairlead proxy-status` "+
			"shows what proxies have acknowledged", kind)
	case f.Threshold < 0 || f.Threshold > 1:
		return process.Usagef("--threshold %g is no share; write 0 to 1, as 0.9", f.Threshold)
	case f.Threshold != 1 && condition == waiting.Programmed:
		return process.Usage(errors.New("--threshold is for --for delivery and deleted: programmed means all proxies"))
	case f.Generation < 0 || f.Generation > 0 && condition == waiting.Deleted:
		return process.Usagef("--generation %d: write a generation of the object, with --for programmed or delivery", f.Generation)
	case f.Timeout <= 0:
		return process.Usagef("--timeout %s: write how long to wait, as 30s", f.Timeout)
	}
	f.For, f.Key = condition, kinds.Key(kind, f.namespace, name)
	if i := strings.LastIndexByte(name, '.'); i > 0 && f.namespace == "" {
		f.Key = kinds.Key(kind, name[i+1:], name[:i])
	}
	if f.verbose {
		f.Progress = func(took time.Duration, text string) {
			fmt.Fprintf(cmd.ErrOrStderr(), "%5.1fs  %s\n", took.Seconds(), text)
		}
	}
	result, err := waiting.Until(cmd.Context(), mesh, f.Request)
	switch {
	case result != nil && f.out.Value != "":
		return errors.Join(structured.Print(cmd.OutOrStdout(), f.out.Value, result), err)
	case err != nil:
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s after %.1fs\n", &f.Request, result.Message, result.Seconds)
	return err
}
