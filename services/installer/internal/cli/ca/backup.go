package ca

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/process"
	"fairlead.dev/proto/fairlead/cabackup"
	"fairlead.dev/services/installer/internal/cabackups"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/controlplane"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/meshclient"
)

const (
	// maxKeyFile bounds files with recipients, private keys of age, and passphrases.
	maxKeyFile = 64 << 10
	// maxSaid bounds what a program of this machine may say about an error.
	maxSaid = 4 << 10
)

// backupFlags are those of `fairlead ca backup`.
type backupFlags struct {
	output, recipientsFile, passphraseFile string
	recipients                             []string
}

// backupCommand is `fairlead ca backup`.
func backupCommand(flags *meshflags.Flags) *cobra.Command {
	f := &backupFlags{}
	cmd := &cobra.Command{
		Use:   "backup -o FILE (--recipient KEY | --recipients-file FILE | --passphrase-file FILE)",
		Short: "Write what the ca needs to come back into an encrypted file",
		Long: `Write the record, the keys and the roots of the ca into one encrypted file of age (age-encryption.org), while the ca runs. The ca encrypts it: no key leaves
its container or machine plain, and a passphrase does not leave this one.

Keys that are in a token or a key service, and those of signers beside the ca, are not in the file; the command names them. Nor are the files that a signer
file names, such as credentials.

docs/guide/ca-backup.md says how a ca is brought back.`,
		Example: `  age-keygen -o backup-key.txt
  fairlead ca backup -o ca.age --recipient age1...
  fairlead ca backup -o ca.age --passphrase-file phrase.txt`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, flags.Mesh(cmd)) },
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.output, "output", "o", "", "file to write; - is standard output (required)")
	fs.StringArrayVar(&f.recipients, "recipient", nil, "public key of age, age1..., that can decrypt the file; may be repeated")
	fs.StringVar(&f.recipientsFile, "recipients-file", "", "file of public keys of age, one a line")
	fs.StringVar(&f.passphraseFile, "passphrase-file", "",
		"file with a passphrase of at least 12 bytes in its first line, instead of recipients")
	_ = cmd.MarkFlagFilename("recipients-file")
	_ = cmd.MarkFlagFilename("passphrase-file")
	flags.AddCluster(cmd)
	return cmd
}

func (f *backupFlags) run(cmd *cobra.Command, mesh *meshclient.Mesh) error {
	if f.output == "" {
		return process.Usage(errors.New("-o is required: name the file to write"))
	}
	recipients, passphrase, err := f.to()
	if err != nil {
		return process.Usage(err)
	}
	run, err := runner(cmd.Context(), mesh)
	if err != nil {
		return err
	}
	var sealed *cabackup.Sealed
	if passphrase != nil {
		sealed, err = cabackups.MakeWithPassphrase(cmd.Context(), run, passphrase)
	} else {
		sealed, err = cabackups.Make(cmd.Context(), run, recipients)
	}
	if err != nil {
		return err
	}
	if f.output == "-" {
		_, err = cmd.OutOrStdout().Write(sealed.Archive)
	} else {
		err = fileio.Output(f.output, sealed.Archive, 0o600)
	}
	if err != nil {
		return err
	}
	sum := sha256.Sum256(sealed.Archive)
	return tell(cmd.ErrOrStderr(), sealed.Summary, "Backup with SHA-256 "+hex.EncodeToString(sum[:]))
}

// to is who can decrypt the file: recipients, or whoever has a passphrase.
func (f *backupFlags) to() (recipients []string, passphrase age.Recipient, err error) {
	if f.passphraseFile != "" {
		if len(f.recipients) > 0 || f.recipientsFile != "" {
			return nil, nil, errors.New("--passphrase-file excludes --recipient and --recipients-file")
		}
		text, err := fileio.Read(f.passphraseFile, maxKeyFile)
		if err == nil {
			passphrase, _, err = cabackup.Passphrase(string(text))
		}
		if err != nil {
			return nil, nil, fmt.Errorf("--passphrase-file: %w", err)
		}
		return nil, passphrase, nil
	}
	recipients = slices.Clone(f.recipients)
	if f.recipientsFile != "" {
		text, err := fileio.Read(f.recipientsFile, maxKeyFile)
		if err != nil {
			return nil, nil, fmt.Errorf("--recipients-file: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				recipients = append(recipients, line)
			}
		}
	}
	if len(recipients) == 0 {
		return nil, nil, errors.New("none of --recipient, --recipients-file and --passphrase-file is set; a backup has the ca's keys and is " +
			"never plain")
	}
	_, err = cabackup.ParseRecipients(strings.Join(recipients, "\n"))
	return recipients, nil, err
}

// runner runs `ca backup` in the ca's container, or on this machine for the mesh of a run directory.
func runner(ctx context.Context, mesh *meshclient.Mesh) (cabackups.Run, error) {
	found, err := mesh.ControlPlane(ctx)
	if err != nil {
		return nil, err
	}
	if found != nil {
		if revisions := found.Revisions(controlplane.CA); len(revisions) > 1 {
			return nil, process.Usagef("namespace %s has a ca of each of the revisions %s: choose one with --revision", found.Namespace,
				strings.Join(revisions, ", "))
		}
		replicas := found.Of(controlplane.CA)
		if len(replicas) == 0 {
			return nil, fmt.Errorf("no ca runs in namespace %s; `fairlead verify-install` says what is missing", found.Namespace)
		}
		return func(ctx context.Context, more []string) ([]byte, error) {
			return replicas[0].Run(ctx, "backup", more, cabackups.Limit)
		}, nil
	}
	state, err := mesh.State()
	if err != nil {
		return nil, err
	}
	for _, s := range state.Services {
		if s.Program == controlplane.CA {
			dir := rundir.Layout{Dir: state.RunDir}.CADir()
			return onThisMachine(s.Path, []string{"backup", "--ca-dir", dir, "--trust-domain", state.TrustDomain}), nil
		}
	}
	return nil, fmt.Errorf("run directory %s has no ca", state.RunDir)
}

func onThisMachine(program string, args []string) cabackups.Run {
	return func(ctx context.Context, more []string) ([]byte, error) {
		var said bytes.Buffer
		cmd := exec.CommandContext(ctx, program, slices.Concat(args, more)...)
		cmd.Stderr, cmd.Env = &said, os.Environ()
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s backup: %w: %.*s", program, err, maxSaid, strings.TrimSpace(said.String()))
		}
		return out, nil
	}
}

// tell says what an archive has, and what it has not.
func tell(w io.Writer, s cabackup.Summary, what string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nof the ca of trust domain %s: signer %s, bundle %d of epoch %d, %d files", what, s.TrustDomain, s.Signer,
		s.Generation, s.Epoch, s.Files)
	for _, secret := range s.Secrets {
		fmt.Fprintf(&b, ", Secret %s", secret)
	}
	b.WriteString("\n")
	for _, root := range s.Roots {
		fmt.Fprintf(&b, "  root with SHA-256 %s\n", root)
	}
	if s.Step != "idle" {
		fmt.Fprintf(&b, "  a rotation is at step %s, and goes on when the ca is restored\n", s.Step)
	}
	for _, sentence := range s.Elsewhere {
		fmt.Fprintf(&b, "  not in the backup: %s\n", sentence)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
