package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/proto/fairlead/cabackup"
	"fairlead.dev/services/ca/internal/app"
	"fairlead.dev/services/ca/internal/backup"
	"fairlead.dev/services/ca/internal/private"
)

// maxRecipients bounds the file of recipients.
const maxRecipients = 64 << 10

// backupFlags are those of `ca backup` beside the ca's own.
type backupFlags struct {
	recipients                     []string
	recipientsFile, passphraseFile string
	output                         string
	summary                        bool
}

func backupCommand() *cobra.Command {
	var f backupFlags
	o := &app.Options{}
	cmd := &cobra.Command{
		Use:   "backup --ca-dir DIR (--recipient KEY | --recipients-file FILE | --passphrase-file FILE)",
		Short: "Write what the ca needs to come back, encrypted",
		Long: "Write the ca's record, keys and roots into one encrypted file of age, while the ca runs. The flags are those that the ca runs " +
			"with, of which --ca-dir, --signer-file, --extra-roots-file, --kubernetes and --trust-domain count, and who can decrypt the file.\n\n" +
			"`ca restore` brings the ca back.",
		Args: service.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			to, err := f.to()
			if err != nil {
				return process.WithExitCode(err, process.ExitUsage)
			}
			archive, err := app.Backup(cmd.Context(), o)
			if err != nil {
				return err
			}
			sealed, err := cabackup.Seal(archive, to...)
			if err != nil {
				return err
			}
			return f.write(cmd, archive.Summary(), sealed)
		},
	}
	fs := cmd.Flags()
	o.AddFlags(fs)
	fs.StringArrayVar(&f.recipients, "recipient", nil, "public key of age, age1..., that can decrypt the file; may be repeated")
	fs.StringVar(&f.recipientsFile, "recipients-file", "", "file of public keys of age, one a line")
	fs.StringVar(&f.passphraseFile, "passphrase-file", "",
		"file with a passphrase of at least 12 bytes in its first line, instead of recipients")
	fs.StringVar(&f.output, "output", "", "file to write (default: standard output)")
	fs.BoolVar(&f.summary, "summary", false, "print JSON with the file and a summary of it, for `fairlead ca backup`")
	return cmd
}

// to is who can decrypt the file.
func (f *backupFlags) to() ([]age.Recipient, error) {
	if f.passphraseFile != "" {
		if len(f.recipients) > 0 || f.recipientsFile != "" {
			return nil, errors.New("--passphrase-file excludes --recipient and --recipients-file")
		}
		recipient, _, err := passphrase(f.passphraseFile)
		return []age.Recipient{recipient}, err
	}
	text := strings.Join(f.recipients, "\n")
	if f.recipientsFile != "" {
		file, err := fileio.Read(f.recipientsFile, maxRecipients)
		if err != nil {
			return nil, fmt.Errorf("--recipients-file: %w", err)
		}
		text += "\n" + string(file)
	}
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("none of --recipient, --recipients-file and --passphrase-file is set; a backup has the ca's keys and is never " +
			"plain")
	}
	return cabackup.ParseRecipients(text)
}

func passphrase(file string) (age.Recipient, age.Identity, error) {
	text, err := private.ReadMounted(file)
	if err != nil {
		return nil, nil, fmt.Errorf("--passphrase-file: %w", err)
	}
	recipient, identity, err := cabackup.Passphrase(string(text))
	if err != nil {
		return nil, nil, fmt.Errorf("--passphrase-file: %w", err)
	}
	return recipient, identity, nil
}

func (f *backupFlags) write(cmd *cobra.Command, s cabackup.Summary, sealed []byte) error {
	if f.summary {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(cabackup.Sealed{Summary: s, Archive: sealed})
	}
	if f.output == "" {
		if _, err := cmd.OutOrStdout().Write(sealed); err != nil {
			return err
		}
	} else if err := fileio.Output(f.output, sealed, 0o600); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	sum := sha256.Sum256(sealed)
	return tell(cmd.ErrOrStderr(), s, "backup with SHA-256 "+hex.EncodeToString(sum[:]))
}

// tell says what an archive has.
func tell(w io.Writer, s cabackup.Summary, what string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of the ca of trust domain %s, signer %s, bundle %d of epoch %d\n", what, s.TrustDomain, s.Signer, s.Generation,
		s.Epoch)
	for _, root := range s.Roots {
		fmt.Fprintf(&b, "root with SHA-256 %s\n", root)
	}
	for _, sentence := range s.Elsewhere {
		fmt.Fprintf(&b, "not in the backup: %s\n", sentence)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func restoreCommand() *cobra.Command {
	var target backup.Target
	var identityFile, passphraseFile string
	cmd := &cobra.Command{
		Use:   "restore --ca-dir DIR (--identity-file FILE | --passphrase-file FILE) FILE",
		Short: "Bring a ca back from a backup, in its directory",
		Long: "Write record, keys and roots of a backup into the directory of a ca that does not run. What belongs into Secrets of Kubernetes " +
			"is written by `fairlead ca restore`.",
		Args: service.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if target.Dir == "" || (identityFile == "") == (passphraseFile == "") {
				return process.WithExitCode(errors.New("--ca-dir and one of --identity-file and --passphrase-file are required"), process.ExitUsage)
			}
			with, err := identities(identityFile, passphraseFile)
			if err != nil {
				return err
			}
			sealed, err := fileio.Read(args[0], 2*cabackup.MaxBytes)
			if err != nil {
				return err
			}
			archive, err := cabackup.Open(sealed, with...)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if err := backup.Restore(cmd.Context(), archive, target); err != nil {
				return err
			}
			s := archive.Summary()
			for _, secret := range s.Secrets {
				s.Elsewhere = append(s.Elsewhere, fmt.Sprintf("Secret %s is not restored by this command: run `fairlead ca restore`", secret))
			}
			return tell(cmd.ErrOrStderr(), s, "restored backup")
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&target.Dir, "ca-dir", "", "directory of the ca (required)")
	fs.StringVar(&target.TrustDomain, "trust-domain", "cluster.local", "trust domain that the backup must have")
	fs.StringArrayVar(&target.KeyDirs, "keys-dir", nil, "directory outside of --ca-dir into which the backup may write keys; may be repeated")
	fs.BoolVar(&target.Force, "force", false, "replace the ca that is there, unless it is newer than the backup")
	fs.StringVar(&identityFile, "identity-file", "", "file with a private key of age that the backup is for")
	fs.StringVar(&passphraseFile, "passphrase-file", "", "file with the passphrase of the backup in its first line")
	return cmd
}

// identities are what decrypts the backup.
func identities(identityFile, passphraseFile string) ([]age.Identity, error) {
	if passphraseFile != "" {
		_, identity, err := passphrase(passphraseFile)
		return []age.Identity{identity}, err
	}
	text, err := private.ReadMounted(identityFile)
	if err != nil {
		return nil, fmt.Errorf("--identity-file: %w", err)
	}
	with, err := cabackup.ParseIdentities(string(text))
	if err != nil {
		return nil, fmt.Errorf("--identity-file: %s: %w", identityFile, err)
	}
	return with, nil
}
