package ca

import (
	"context"
	"errors"
	"fmt"

	"filippo.io/age"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/process"
	"fairlead.dev/proto/fairlead/cabackup"
	"fairlead.dev/services/installer/internal/cabackups"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/kubeflags"
	"fairlead.dev/services/installer/internal/controlplane"
	"fairlead.dev/services/installer/internal/kube"
)

// restoreFlags are those of `fairlead ca restore`.
type restoreFlags struct {
	cluster                      kubeflags.Cluster
	identityFile, passphraseFile string
	trustDomain                  string
	signerFileOut, extraRootsOut string
	force, show                  bool
}

// restoreCommand is `fairlead ca restore`.
func restoreCommand() *cobra.Command {
	f := &restoreFlags{}
	cmd := &cobra.Command{
		Use:   "restore FILE (--identity-file FILE | --passphrase-file FILE)",
		Short: "Bring back a ca whose record and keys are in Secrets",
		Long: `Write the Secrets of a backup into the namespace of a control plane in which no ca runs: before the control plane is installed, or while the ca is scaled to 0.
A ca with a directory is restored where the directory is, by ` + "`ca restore`" + `; docs/guide/ca-backup.md has both.

The restored ca has another epoch, by which agents and services know that its trust bundles are later ones than those before. A rotation that was under way
goes on. What is there is replaced with --force alone, and a ca that has the same root and is newer than the backup is not replaced.

--show only says what is in the file.`,
		Example: `  fairlead ca restore ca.age --identity-file backup-key.txt --show
  fairlead ca restore ca.age --identity-file backup-key.txt --signer-file-out signer.yaml`,
		Args: command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.identityFile, "identity-file", "", "file with a private key of age that the backup is for, as age-keygen writes it")
	fs.StringVar(&f.passphraseFile, "passphrase-file", "", "file with the passphrase of the backup in its first line")
	fs.StringVar(&f.trustDomain, "trust-domain", "cluster.local", "trust domain that the backup must have")
	fs.StringVar(&f.signerFileOut, "signer-file-out", "", "file to write the signer file of the backup to")
	fs.StringVar(&f.extraRootsOut, "extra-roots-out", "", "file to write the extra roots of the backup to")
	fs.BoolVar(&f.force, "force", false, "replace the ca that is there, unless it is newer than the backup")
	fs.BoolVar(&f.show, "show", false, "only say what is in the file")
	_ = cmd.MarkFlagFilename("identity-file")
	_ = cmd.MarkFlagFilename("passphrase-file")
	f.cluster.Add(cmd)
	return cmd
}

func (f *restoreFlags) run(cmd *cobra.Command, file string) error {
	with, err := f.with()
	if err != nil {
		return process.Usage(err)
	}
	sealed, err := fileio.Read(file, 2*cabackup.MaxBytes)
	if err != nil {
		return err
	}
	archive, err := cabackup.Open(sealed, with...)
	if err != nil {
		return process.Refusedf("%s: %w", file, err)
	}
	for out, text := range map[string]string{f.signerFileOut: archive.SignerFile, f.extraRootsOut: archive.ExtraRoots} {
		if out == "" {
			continue
		}
		if text == "" {
			return process.Refusedf("%s: the backup has nothing to write to %s: the ca had no such file", file, out)
		}
		if err := fileio.Output(out, []byte(text), 0o600); err != nil {
			return err
		}
	}
	summary := archive.Summary()
	if f.show {
		return tell(cmd.OutOrStdout(), summary, "Backup")
	}
	api, err := f.cluster.API()
	if err != nil {
		return process.Usage(err)
	}
	if err := noCA(cmd.Context(), api, f.cluster.IstioNamespace); err != nil {
		return err
	}
	target := cabackups.Target{API: api.CoreV1(), Namespace: f.cluster.IstioNamespace, TrustDomain: f.trustDomain, Force: f.force}
	if err := cabackups.Restore(cmd.Context(), archive, target); err != nil {
		return err
	}
	if len(archive.Files) > 0 || archive.In == (cabackup.Place{}) {
		summary.Elsewhere = append(summary.Elsewhere, "files of --ca-dir are not restored by this command: run `ca restore` before the ca starts")
	}
	return tell(cmd.OutOrStdout(), summary, "Restored")
}

// with decrypts the backup.
func (f *restoreFlags) with() ([]age.Identity, error) {
	if (f.identityFile == "") == (f.passphraseFile == "") {
		return nil, errors.New("one of --identity-file and --passphrase-file is required")
	}
	if f.passphraseFile != "" {
		text, err := fileio.Read(f.passphraseFile, maxKeyFile)
		if err != nil {
			return nil, fmt.Errorf("--passphrase-file: %w", err)
		}
		_, identity, err := cabackup.Passphrase(string(text))
		if err != nil {
			return nil, fmt.Errorf("--passphrase-file: %w", err)
		}
		return []age.Identity{identity}, nil
	}
	text, err := fileio.Read(f.identityFile, maxKeyFile)
	if err != nil {
		return nil, fmt.Errorf("--identity-file: %w", err)
	}
	with, err := cabackup.ParseIdentities(string(text))
	if err != nil {
		return nil, fmt.Errorf("--identity-file: %s: %w", f.identityFile, err)
	}
	return with, nil
}

// noCA returns an error while a ca runs in the namespace: it would go on with what it has in memory.
func noCA(ctx context.Context, api kube.API, namespace string) error {
	return kube.EachPod(ctx, api, namespace, "app in (ca, fairlead)", func(pod *corev1.Pod) error {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			return nil
		}
		for _, c := range pod.Spec.Containers {
			if c.Name == controlplane.CA {
				return fmt.Errorf("Pod %s/%s runs the ca, which would go on with what it has in memory; scale it to 0 first, and back when "+
					"the Secrets are restored", namespace, pod.Name)
			}
		}
		return nil
	})
}
