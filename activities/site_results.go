package activities

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// parseSiteSize reads an agent's output.
func parseSiteSize(printed string) (s tenant.SiteSize, err error) {
	err = lastJSON(printed, &s)
	if err == nil && (s.DatabaseBytes < 0 || s.FilesBytes < 0 || s.BackupsBytes < 0 || s.Users < 0) {
		err = prego.Errorf(prego.CodeInternal, "the host reported a negative size")
	}
	if err == nil && max(s.DatabaseBytes, s.FilesBytes, s.BackupsBytes) > mostBytes {
		err = prego.Errorf(prego.CodeInternal, "the host reported a size that no disk has")
	}
	return s, err
}

// mostBytes is more than any disk has. Sums of what hosts report stay below 1<<63.
const mostBytes = 1 << 56

// backupDatabase is the suffix of the one file that every backup must have.
const backupDatabase = "-database.sql.gz"

// parseBackup reads an agent's output of a backup and rejects a backup of another name
// or site, or one without a database.
func parseBackup(site, name, printed string) (tenant.HostBackup, error) {
	var b tenant.HostBackup
	if err := lastJSON(printed, &b); err != nil {
		return b, err
	}
	if b.Name != name {
		return b, prego.Errorf(prego.CodeInternal, "the host made backup %q instead of %q", b.Name, name)
	}
	b.Bytes = 0
	var files, database []tenant.HostFile
	for _, f := range b.Files {
		if !strings.HasPrefix(f.Path, site+"/") || strings.Contains(f.Path, "..") || f.Bytes < 0 {
			return b, prego.Errorf(prego.CodeInternal, "the host reported a backup file that is not of site %s", site)
		}
		if b.Bytes += min(f.Bytes, mostBytes+1); b.Bytes > mostBytes {
			return b, prego.Errorf(prego.CodeInternal, "the host reported a backup that no disk has room for")
		}
		if strings.HasSuffix(f.Path, backupDatabase) && f.Bytes > 0 {
			database = append(database, f)
		} else {
			files = append(files, f)
		}
	}
	if len(database) != 1 {
		return b, prego.Errorf(prego.CodeInternal, "the backup has no database")
	}
	b.Files = slices.Concat(database, files)
	return b, nil
}

// lastJSON decodes the last line of the output: the result of a typed verb.
func lastJSON(printed string, into any) error {
	lines := strings.Split(strings.TrimSpace(printed), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), into); err != nil {
		return prego.Errorf(prego.CodeInternal, "the host's result is no JSON: %.100q", lines[len(lines)-1])
	}
	return nil
}
