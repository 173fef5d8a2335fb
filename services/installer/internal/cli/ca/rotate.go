package ca

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/process"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/services/installer/internal/caops"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/complete"
	"fairlead.dev/services/installer/internal/cli/meshflags"
)

// maxSignerFile bounds a signer file.
const maxSignerFile = 64 << 10

// steering is the part of the help that rotate and swap have in common.
const steering = `

The ca does the rest, step by step, and waits in each step until nobody would lose a connection; ` + "`fairlead ca status -w`" + ` shows it. One flag
steers the rotation that is under way, whichever of the two commands has begun it:

  --pause        stay at this step
  --resume       go on
  --abort        before step issue: nothing was issued from the next signer, whose roots leave the mesh again
  --rollback     at the steps issue and renew: issue from the signer before again
  --accept WHO   do not wait for this holder, such as an agent that was stopped: connections with it may fail
  --compromised  others may have the keys of the signer that the rotation leads away from: the step renew ends an hour after it began, also for those
                 who have not renewed by then, and there is no way back by --rollback

Beginning a rotation, --accept and --compromised ask before, unless --yes is set.

Exit code 1 if the state of the ca does not allow it, 3 if the ca refuses what it is given. With --wait: 0 when the rotation has ended and led to the new
signer, 1 if it was aborted or rolled back, or if the command was interrupted, after which the rotation goes on.`

// rotateFlags are the flags of `fairlead ca rotate` and `fairlead ca swap`.
type rotateFlags struct {
	caops.Flags
	yes bool
}

func newRotate(env command.Env, flags *meshflags.Flags) *cobra.Command {
	return newOrder(env, flags, &rotateFlags{}, &cobra.Command{
		Use:   "rotate",
		Short: "Rotate to new keys and a new root of the signer, or steer a rotation",
		Long: `Rotate to new keys and a new root of the signer that is in use.` + steering + `

--compromised alone begins a rotation if none is under way.`,
		Example: `  fairlead ca rotate --reason "yearly" --wait
  fairlead ca rotate --pause
  fairlead ca rotate --accept shop/old-0
  fairlead ca rotate --abort
  fairlead ca rotate --compromised --yes`,
	})
}

func newSwap(env command.Env, flags *meshflags.Flags) *cobra.Command {
	f := &rotateFlags{Flags: caops.Flags{Swap: true}}
	cmd := newOrder(env, flags, f, &cobra.Command{
		Use:   "swap --to FILE",
		Short: "Swap the signer for another one, or steer a rotation",
		Long: `Swap the signer for that of a signer file, of kind Signer, as the ca's flag --signer-file takes. Files that the signer file names are those of the machine or
container in which the ca runs.` + steering,
		Example: `  fairlead ca swap --to vault.yaml --reason "keys move to Vault" --wait
  fairlead ca swap --to - --yes < signer.yaml
  fairlead ca swap --rollback`,
	})
	cmd.Flags().StringVar(&f.To, "to", "", "file of the signer to swap to, YAML or JSON; - reads standard input")
	_ = cmd.MarkFlagFilename("to", "yaml", "yml", "json")
	return cmd
}

// newOrder adds to a command what rotate and swap have in common.
func newOrder(env command.Env, flags *meshflags.Flags, f *rotateFlags, cmd *cobra.Command) *cobra.Command {
	cmd.Args = command.Args(cobra.NoArgs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return f.run(cmd, env, caops.New(flags.Mesh(cmd))) }
	fs := cmd.Flags()
	fs.StringVar(&f.Reason, "reason", "", "why, for those who look at the status; up to 256 bytes")
	fs.BoolVar(&f.Compromised, "compromised", false, "others may have the keys of the signer that the rotation leads away from")
	fs.BoolVar(&f.Pause, caapi.Pause, false, "have the rotation stay at its step")
	fs.BoolVar(&f.Resume, caapi.Resume, false, "have a paused rotation go on")
	fs.BoolVar(&f.Abort, caapi.Abort, false, "end the rotation before anything was issued from the next signer")
	fs.BoolVar(&f.Rollback, caapi.Rollback, false, "issue from the signer before again")
	fs.StringArrayVar(&f.Accept, caapi.Accept, nil, "holder that the rotation does not wait for, by its name in the status; may be repeated")
	fs.BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	fs.BoolVar(&f.Wait, "wait", false, "wait until the rotation has ended, and say how far it is")
	_ = cmd.RegisterFlagCompletionFunc(caapi.Accept, complete.Names(func(cmd *cobra.Command, _ []string) []string {
		ctx, cancel := context.WithTimeout(cmd.Context(), complete.Timeout)
		defer cancel()
		status, err := caops.New(flags.Mesh(cmd)).Status(ctx)
		if err != nil {
			return nil
		}
		return caops.Names(status)
	}))
	addMesh(cmd, flags)
	return cmd
}

func (f *rotateFlags) run(cmd *cobra.Command, env command.Env, client *caops.Client) error {
	if err := f.Check(); err != nil {
		return err
	}
	file, err := f.signerFile(env)
	if err != nil {
		return err
	}
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	status, err := client.Status(ctx)
	if err != nil {
		return err
	}
	order, err := f.Order(status, file)
	if err != nil {
		return err
	}
	if order.Question != "" && !f.yes {
		if f.To == "-" {
			return process.Usage(errors.New("--to - reads the signer file from standard input, where the answer to a question would " +
				"come from; add --yes"))
		}
		if yes, err := command.Confirm(env.In, cmd.ErrOrStderr(), order.Question, "--yes"); err != nil || !yes {
			return command.OrNothingChanged(err)
		}
	}
	for _, c := range order.Commands {
		if status, err = client.Send(ctx, c); err != nil && c.Holder != "" {
			return fmt.Errorf("--accept %s: %w", c.Holder, err)
		} else if err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(out, order.Done(status)); err != nil || !f.Wait {
		return err
	}
	return wait(ctx, client, status, order, newView(env, out))
}

// wait follows the rotation of a status to its end.
func wait(ctx context.Context, client *caops.Client, begun *caapi.Status, order caops.Order, view caops.View) error {
	if begun.Step == caops.Idle {
		return nil
	}
	last, ended := client.Follow(ctx, begun, view, clock.Real())
	switch wanted := caops.Target(begun); {
	case !ended:
		return errors.New("interrupted; the rotation goes on, and `fairlead ca status -w` follows it")
	case order.Begins() && caops.Current(last) != wanted:
		return fmt.Errorf("the rotation was aborted or rolled back: signer %d issues, not signer %d", caops.Current(last), wanted)
	}
	return nil
}

// signerFile reads the file of --to; empty without the flag. The ca judges it; what is no signer file at all is not
// sent.
func (f *rotateFlags) signerFile(env command.Env) (string, error) {
	if f.To == "" {
		return "", nil
	}
	var text []byte
	var err error
	if f.To == "-" {
		text, err = fileio.ReadAll(env.In, maxSignerFile)
	} else {
		text, err = fileio.Read(f.To, maxSignerFile)
	}
	if err != nil {
		return "", process.Usagef("--to: %w", err)
	}
	var fields map[string]any
	if err := yaml.Unmarshal(text, &fields); err != nil {
		return "", process.Refusedf("%s: it is no YAML with the fields of a signer: %w", f.To, err)
	}
	if len(fields) == 0 {
		return "", process.Refusedf("%s: it is empty; write a signer of kind Signer, as the ca's --signer-file takes", f.To)
	}
	return string(text), nil
}
