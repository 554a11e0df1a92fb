"""Invoice and reconciliation as a browser prints them: one page, and the numbers on the paper are those of the document."""

import html
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from tests.support.daemons.stack import ROOT

CHROMIUM = shutil.which("chromium")
PDFINFO, PDFTOTEXT = shutil.which("pdfinfo"), shutil.which("pdftotext")
GOLDEN = os.path.join(ROOT, "tests", "golden", "invoice.html")


def chromium(folder, *args):
    """Without a sandbox of its own: it reads one file that this test wrote, and may be root's process."""
    argv = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={folder}/profile", *args]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "HOME": folder, "XDG_CONFIG_HOME": folder, "XDG_CACHE_HOME": folder})
    assert done.returncode == 0, done.stderr


def words(text):
    return " ".join(text.replace("\N{MINUS SIGN}", "-").split())


@unittest.skipUnless(CHROMIUM, "there is no chromium on this machine")
@unittest.skipUnless(PDFINFO and PDFTOTEXT, "there are no poppler-utils on this machine")
class Printed(unittest.TestCase):
    def setUp(self):
        self.dir = self.enterContext(tempfile.TemporaryDirectory(prefix="tollgate-print-", ignore_cleanup_errors=True))
        with open(GOLDEN, encoding="utf-8") as f:
            self.document = f.read()

    def printed(self, document):
        """Its pages and their text."""
        source, target = os.path.join(self.dir, "invoice.html"), os.path.join(self.dir, "invoice.pdf")
        with open(source, "w", encoding="utf-8") as f:
            f.write(document)
        chromium(self.dir, "--no-pdf-header-footer", f"--print-to-pdf={target}", "file://" + source)
        pages = int(re.search(r"^Pages:\s+(\d+)", subprocess.run([PDFINFO, target], capture_output=True, text=True, check=True).stdout, re.M)[1])
        return pages, words(subprocess.run([PDFTOTEXT, "-layout", target, "-"], capture_output=True, text=True, check=True).stdout)

    def test_an_invoice_is_one_page_with_all_its_numbers(self):
        pages, text = self.printed(self.document)
        self.assertEqual(pages, 1)
        cells = [words(html.unescape(re.sub("<.*?>", "", c))) for c in re.findall(r'<td class="n[^"]*"[^>]*>(.*?)</td>', self.document)]
        self.assertGreater(len(cells), 50)
        for cell in cells:
            self.assertIn(cell, text)
        for name in ("Acme \"Robotics\"", "R&D <4711>", "Example & Söhne", "acme-2026-11-1", "<b>dev</b>"):
            self.assertIn(name, text)

    def test_a_reconciliation_is_one_page_with_all_its_numbers(self):
        with open(os.path.join(ROOT, "tests", "golden", "reconciliation.html"), encoding="utf-8") as f:
            document = f.read()
        pages, text = self.printed(document)
        self.assertEqual(pages, 1)
        cells = [words(html.unescape(c)) for c in re.findall(r'<td class="n">(.*?)</td>', document)]
        self.assertGreater(len(cells), 50)
        for cell in cells:
            self.assertIn(cell, text)
        for name in ("Platform <Team>", "<east>", "=west"):
            self.assertIn(name, text)

    def test_pages_as_full_as_they_can_be_are_one_each(self):
        """Long names, corrections, budgets, three currencies, more lines than there is room for; tests/unit/reports/test_invoice_html.c makes them."""
        with open(os.path.join(ROOT, "tests", "golden", "invoice-full.html"), encoding="utf-8") as f:
            document = f.read()
        pages, text = self.printed(document)
        self.assertEqual(pages, document.count("<section>"))
        # Words may be cut, amounts never.
        cells = [words(html.unescape(re.sub("<.*?>", "", c))) for c in re.findall(r'<td class="n[^"]*"[^>]*>(.*?)</td>', document.replace("\N{NO-BREAK SPACE}", " "))]
        self.assertGreater(len(cells), 300)
        for cell in cells:
            self.assertTrue(all(word in text for word in cell.split()), cell)
        for said in ("acme-2026-07-2,", "corrects 0123456789ab"):
            self.assertIn(said, text)

    def test_a_screen_shows_it_too(self):
        source, target = os.path.join(self.dir, "invoice.html"), os.path.join(self.dir, "invoice.png")
        with open(source, "w", encoding="utf-8") as f:
            f.write(self.document)
        chromium(self.dir, "--window-size=900,1250", f"--screenshot={target}", "file://" + source)
        with open(target, "rb") as f:
            head = f.read(24)
        self.assertEqual((head[:8], int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")), (b"\x89PNG\r\n\x1a\n", 900, 1250))
        self.assertGreater(os.path.getsize(target), 40_000, "a blank page is smaller")


if __name__ == "__main__":
    unittest.main()
