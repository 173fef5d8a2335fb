package cabackup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
)

// ParseRecipients reads public keys of age, one a line: age1... Lines with # are comments. Keys of ssh are not taken.
func ParseRecipients(text string) ([]age.Recipient, error) {
	recipients, err := age.ParseRecipients(strings.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("recipients of the backup: %w; write public keys of age, one a line (age-keygen makes them)", err)
	}
	return recipients, nil
}

// ParseIdentities reads private keys of age, one a line, as age-keygen writes them. Its errors quote none.
func ParseIdentities(text string) ([]age.Identity, error) {
	identities, err := age.ParseIdentities(strings.NewReader(text))
	if err != nil {
		return nil, errors.New("it is no file with private keys of age, AGE-SECRET-KEY-1..., one a line")
	}
	return identities, nil
}

// minPassphrase keeps an attacker with the file from trying all passphrases.
const minPassphrase = 12

// Passphrase returns recipient and identity of the passphrase in a file, whose first line it is.
func Passphrase(text string) (age.Recipient, age.Identity, error) {
	line, _, _ := strings.Cut(text, "\n")
	line = strings.TrimSuffix(line, "\r")
	if len(line) < minPassphrase {
		return nil, nil, fmt.Errorf("the passphrase has %d bytes, fewer than %d; take a longer one", len(line), minPassphrase)
	}
	recipient, err := age.NewScryptRecipient(line)
	if err != nil {
		return nil, nil, err
	}
	identity, err := age.NewScryptIdentity(line)
	if err != nil {
		return nil, nil, err
	}
	return recipient, identity, nil
}

// Seal encrypts an archive.
func Seal(a *Archive, to ...age.Recipient) ([]byte, error) {
	text, err := a.Encode()
	if err != nil {
		return nil, err
	}
	return Encrypt(text, to...)
}

// Encrypt encrypts the text of an archive.
func Encrypt(text []byte, to ...age.Recipient) ([]byte, error) {
	var out bytes.Buffer
	w, err := age.Encrypt(&out, to...)
	if err != nil {
		return nil, fmt.Errorf("encrypt the backup: %w", err)
	}
	if _, err := w.Write(text); err != nil {
		return nil, fmt.Errorf("encrypt the backup: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("encrypt the backup: %w", err)
	}
	return out.Bytes(), nil
}

// Decrypt returns the text of an archive. A file that was changed or shortened is refused.
func Decrypt(sealed []byte, with ...age.Identity) ([]byte, error) {
	if len(sealed) > MaxBytes+MaxBytes/16 {
		return nil, fmt.Errorf("the backup has %d bytes, more than one can have", len(sealed))
	}
	r, err := age.Decrypt(bytes.NewReader(sealed), with...)
	if noMatch := (*age.NoIdentityMatchError)(nil); errors.As(err, &noMatch) {
		return nil, errors.New("the backup cannot be decrypted with this key or passphrase; use that of the recipient it was made for")
	}
	if err != nil {
		return nil, fmt.Errorf("decrypt the backup: %w; it is damaged, or no file of `fairlead ca backup`", err)
	}
	text, err := io.ReadAll(io.LimitReader(r, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("decrypt the backup: %w; it is damaged or incomplete, use another copy", err)
	}
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("the archive has more than %d bytes", MaxBytes)
	}
	return text, nil
}

// Open decrypts an archive and checks it.
func Open(sealed []byte, with ...age.Identity) (*Archive, error) {
	text, err := Decrypt(sealed, with...)
	if err != nil {
		return nil, err
	}
	return Decode(text)
}
